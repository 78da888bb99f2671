"""Files of problems that are odd are read as meant, or are refused in one line that says what to do."""

import subprocess
import sys
from datetime import date
from decimal import Decimal

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from grpo.config import DataConfig, UserError
from grpo.tasks.files import read_rows, require_file, size_of
from grpo.tasks.sources import load_problems

SUMS = "problem,answer\n1 + 1 =,2\n"


def refusal(path):
    with pytest.raises(UserError) as caught:
        read_rows(path, "task.data.path")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *(SUMS, f"\ufeff{SUMS}", SUMS.replace("\n", "\r\n"), SUMS.replace("\n", "\r"), f"\n \n{SUMS}\n\n"),
        *(SUMS.replace(",", ";"), SUMS.replace(",", " \t")),
    ],
    ids=["plain", "byte order mark", "Windows", "old Mac", "empty lines", "semicolons", "tabs"],
)
def test_tables_of_all_systems_are_read(text, tmp_path):
    (tmp_path / "sums.csv").write_bytes(text.encode())
    [row] = read_rows(tmp_path / "sums.csv", "task.data.path")
    assert {name: cell.strip() for name, cell in row.items()} == {"problem": "1 + 1 =", "answer": "2"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"[" * 100_000, "whose brackets are nested too deeply"),
        ("a.json", b"[" * 100_000, "whose brackets are nested too deeply"),
        ("a.jsonl", b'{"problem": "1", "problem": "2"}', "the column 'problem' comes twice"),
        ("a.json", b'[{"problem": "1", "problem": "2"}]', "the column 'problem' comes twice"),
        ("a.csv", SUMS.encode("utf-16-le"), "perhaps UTF-16: save it as UTF-8"),
        ("a.csv", SUMS.encode("utf-16"), "not UTF-8 text"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "fetch it with `git lfs pull`"),
        ("a.jsonl.gz", b"{}", "Not a gzipped file"),
        ("a.jsonl", b"\x1f\x8b\x08", "is a gzip file by its content: rename it so that it ends in .gz"),
        (
            "a.json",
            b'{"train": [{"problem": "q"}], "test": []}',
            "it is one object with train, test: keep the list alone",
        ),
        (
            "a.csv",
            b'{"problem": "q", "answer": "1"}\n',
            "it is JSON Lines by its content: rename it so that it ends in",
        ),
        ("a.csv", b"PAR1", "is a Parquet file by its content: rename it so that it ends in .parquet"),
        ("a.csv", f'{SUMS}"1 + 2 =,3\n4 + 4,8\n'.encode(), "the row that begins in line 3 has quotation marks that"),
        ("a.csv", f"{SUMS}1 + 2,3,4\n".encode(), "line 3 has 3 cells and the header 2: put a text with ',' in quotes"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert message in refusal(tmp_path / name)


def test_a_table_without_a_header_is_said_to_need_one(tmp_path):
    (tmp_path / "a.csv").write_text("1 + 2 =,3\n4 + 4 =,8\n")
    with pytest.raises(UserError, match="it has 1 . 2 =, 3; the first line of a table names its columns"):
        load_problems(DataConfig(path=str(tmp_path / "a.csv")))


def test_a_comma_in_the_header_of_a_table_with_tabs_is_no_separator(tmp_path):
    (tmp_path / "a.tsv").write_text("problem, in words\tanswer\nOne, and two\t3\n")
    assert read_rows(tmp_path / "a.tsv", "task.data.path") == [{"problem, in words": "One, and two", "answer": "3"}]


def test_a_long_cell_of_a_table_is_read(tmp_path):
    (tmp_path / "long.csv").write_text(f"problem,answer\n{'x' * 200_000},1\n")
    [row] = read_rows(tmp_path / "long.csv", "task.data.path")
    assert len(row["problem"]) == 200_000


def test_a_repeated_column_of_a_parquet_file_is_refused(tmp_path):
    names = ["problem", "answer", "answer"]
    table = pyarrow.Table.from_arrays([pyarrow.array(["1"])] * 3, names=names)
    pyarrow.parquet.write_table(table, tmp_path / "twice.parquet")
    assert "the column 'answer' comes twice" in refusal(tmp_path / "twice.parquet")


def test_a_folder_with_a_training_and_a_test_set_is_refused(tmp_path):
    row = '{"problem": "1 + 1", "answer": "2"}\n'
    for name in ("train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "a_contest.jsonl", "trained.jsonl"):
        (tmp_path / name).write_text(row)
    assert len(read_rows(tmp_path, "task.data.path")) == 4
    (tmp_path / "gsm8k_test.jsonl").write_text(row)
    named = f"several splits, gsm8k_test.jsonl, train-00000-of-00002.jsonl: name one file, such as {tmp_path}"
    with pytest.raises(UserError, match=named):
        read_rows(tmp_path, "task.data.path")


def test_a_folder_passes_over_hidden_files_and_names_a_folder_inside(tmp_path):
    (tmp_path / "inside").mkdir()
    assert f"give one of them, such as {tmp_path}/inside" in refusal(tmp_path)
    (tmp_path / "sums.csv").write_text(SUMS)
    (tmp_path / "._sums.csv").write_bytes(b"\0\xff")
    assert len(read_rows(tmp_path, "task.data.path")) == 1
    # Deeper files are not read, so they do not count: a home folder would take minutes.
    (tmp_path / "inside" / "more.csv").write_text(SUMS)
    assert size_of(tmp_path) == len(SUMS) + 2


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("data/*.jsonl", "patterns are not expanded: give the folder"),
        ("https://a.b/c.jsonl", "read from disk only: download it first"),
        ("openai/gsm8k", "a data set of the hub needs task.data.source=hub"),
    ],
)
def test_a_path_that_is_no_files_says_what_to_give_instead(path, hint):
    with pytest.raises(UserError, match=hint):
        require_file(path, "task.data.path")


def test_answers_are_numbers_of_any_size_and_kind_but_not_dates(tmp_path, write_rows):
    rows = [{"problem": "a", "answer": 10**400}, {"problem": "b", "answer": float("nan")}]
    problems, report = load_problems(DataConfig(path=write_rows(rows)))
    assert [problem.answer for problem in problems] == [f"1{'0' * 400}"] and report.unusable == ("sums-1",)
    columns = {"problem": ["a", "b"], "answer": [Decimal("0.50"), Decimal("12")], "day": [date(2024, 1, 1)] * 2}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "decimals.parquet")
    problems, _ = load_problems(DataConfig(path=f"{tmp_path}/decimals.parquet"))
    assert [problem.answer for problem in problems] == ["0.50", "12.00"]
    with pytest.raises(UserError, match="the answer datetime.date"):
        load_problems(DataConfig(path=f"{tmp_path}/decimals.parquet", answer_column="day"))


def test_numbers_of_single_precision_are_read_as_they_were_written(tmp_path):
    columns = {"problem": ["a", "b", "c"], "answer": pyarrow.array([3.3, None, 1e-7], pyarrow.float32())}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "single.parquet")
    datasets.Dataset.from_parquet(f"{tmp_path}/single.parquet").save_to_disk(tmp_path / "saved")
    for name in ("single.parquet", "saved"):
        problems, _ = load_problems(DataConfig(path=f"{tmp_path}/{name}"))
        assert [problem.answer for problem in problems] == ["3.3", "1e-07"]


def test_floats_within_a_nested_column_are_as_somebody_wrote_them(tmp_path):
    kind = pyarrow.struct([("truth", pyarrow.float32()), ("all", pyarrow.list_(pyarrow.float32()))])
    cells = [{"truth": 3.3, "all": [0.1, None]}, None]
    by_name = pyarrow.array([[("a", 0.5)], None], pyarrow.map_(pyarrow.string(), pyarrow.float32()))
    table = pyarrow.table({"info": pyarrow.array(cells, kind), "by_name": by_name})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    rows = read_rows(tmp_path / "rows.parquet", "task.data.path")
    assert [row["info"] for row in rows] == cells and rows[0]["by_name"] == [("a", 0.5)]


def test_a_column_without_a_name_is_not_the_ids(tmp_path):
    (tmp_path / "index.csv").write_text(",problem,answer\n0,1 + 1 =,2\n0,2 + 2 =,4\n")
    problems, _ = load_problems(DataConfig(path=f"{tmp_path}/index.csv"))
    assert [problem.problem_id for problem in problems] == ["index-0", "index-1"]


def test_a_name_with_blanks_is_hinted_at_in_quotes(write_rows):
    path = write_rows([{" problem ": "1 + 1 =", "answer": "2"}])
    with pytest.raises(UserError, match='perhaps task.data.question_column=" problem " is meant'):
        load_problems(DataConfig(path=path))


@pytest.mark.slow
def test_rows_that_do_not_fit_into_memory_are_one_line(tmp_path):
    """The file has less than 64 KiB and unpacks to 8 cells of 64 MiB, where 384 MiB are left."""
    pyarrow.parquet.write_table(
        pyarrow.table({"problem": ["x" * 2**26] * 8}), tmp_path / "bomb.parquet", compression="zstd"
    )
    assert (tmp_path / "bomb.parquet").stat().st_size < 2**16
    code = (
        "import pathlib, psutil, resource, sys\n"
        "import pyarrow.parquet\n"
        "from grpo.config import UserError\n"
        "from grpo.tasks.files import read_rows\n"
        "most = psutil.Process().memory_info().vms + 384 * 2**20\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "try: read_rows(pathlib.Path(sys.argv[1]), 'task.data.path')\n"
        "except UserError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "bomb.parquet"], capture_output=True, text=True)
    assert done.stdout == (
        f"cannot read {tmp_path}/bomb.parquet, whose rows do not fit into memory: give a smaller file.\n"
    )


def test_the_row_that_is_none_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"problem": "1 + 1 =", "answer": 2}\n[1, 2]\n')
    with pytest.raises(UserError, match="or in .jsonl one in each line; row 2 is none.$"):
        read_rows(tmp_path / "a.jsonl", "task.data.path")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            "state.json",
            r"task.data.path: .*/saved is a damaged data set \(KeyError: '_data_files'\): write it again by",
        ),
        (
            "dataset_dict.json",
            "task.data.path: .*/saved is a data set of splits, of which none is there: write it again",
        ),
    ],
)
def test_a_saved_data_set_that_lacks_its_rows_is_one_line(file, message, tmp_path):
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "dataset_info.json").write_text("{}")
    (saved / file).write_text("{}")
    with pytest.raises(UserError, match=message):
        read_rows(saved, "task.data.path")
