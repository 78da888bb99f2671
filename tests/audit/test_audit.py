"""These tests doctor a small recorded run in many ways, and check that an audit names each of them."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from grpo.audit.lines import DIFFERS, SAME, Line, tried
from grpo.cli import main
from grpo.run.checksums import write_checksums
from grpo.run.manifest import close_manifest, read_manifest
from tests.fakes import SingleRank
from tests.runs import grpo

pytestmark = pytest.mark.slow

REWARD = """def close(completion, answer, metadata):
    return 1.0 if completion.strip() == answer else 0.1 * completion.strip().isdigit()
"""
WORDS = (
    *("experiment=tiny", "dynamics.prompts_per_step=4", "dynamics.group_size=4", "num_steps=2", "seed=1"),
    *("rollout.engine=transformers", "learner.precision=float32", "rollout.precision=float32"),
    *("evaluation.num_problems=2", "evaluation.samples_per_problem=1", "evaluation.pass_at=[1]"),
    *("checkpoint.every_rounds=1", "tracking.completions=all"),
    *("task=file", "task.data.path=problems.jsonl", "task.data.held_out_fraction=0.2", "dynamics.diagnose_every=0"),
    *("task.prompt.template='{question}'", "deterministic=true"),
    'task.reward.parts=[{name: "rewards.py:close"}]',
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Makes a run in a folder that also has its problems and its reward."""
    folder = tmp_path_factory.mktemp("recorded")
    problems = [{"problem": f"{a} + {b} = ", "answer": str(a + b)} for a in range(5) for b in range(4)]
    (folder / "problems.jsonl").write_text("".join(f"{json.dumps(problem)}\n" for problem in problems))
    (folder / "rewards.py").write_text(REWARD)
    with contextlib.chdir(folder):
        done = grpo("train", *WORDS, "output_dir=run")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def run(recorded, tmp_path, monkeypatch):
    """Copies the recorded run, so that a test may doctor it."""
    shutil.copytree(recorded, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return Path("run")


def audit(capsys, *words, code=1):
    """Audits the run as a person does. Returns what differs, by subject."""
    assert main(["audit", "run", *words]) == code
    found = {}
    for line in re.findall(r"^differs +(.*)", capsys.readouterr().out, re.MULTILINE):
        subject, fact = re.fullmatch(r"((?:step \d+: )?[\w -]+): (.*)", line).groups()
        found[subject] = f"{found.get(subject, '')}{fact}\n"
    return found


EPISODE = """import random


class Quiz:
    def reset(self, problem):
        # Groups of some problems have no turn at all.
        assert not problem.startswith("1")
        return f"Hint {random.randint(0, 9)}."

    def get_reward(self):
        return 1.0


async def twice(chat, problem):
    first = await chat(list(problem.messages))
    await chat([{"role": "user", "content": "Once more."}, *problem.messages])
    return float(len(first["content"]) % 2)
"""


@pytest.mark.parametrize("name", ["Quiz", "twice"])
def test_an_honest_run_of_episodes_has_the_same_everywhere(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "episode.py").write_text(EPISODE)
    (tmp_path / "problems.jsonl").write_text(
        "".join(f'{{"problem": "{a} + 1 = ", "answer": "{a + 1}"}}\n' for a in range(20))
    )
    words = [word for word in WORDS if not word.startswith(("deterministic", "task.reward"))]
    own = ["model.max_length=128", f"task.episode=episode.py:{name}", "task.reward.parts=[{name: episode}]"]
    done = grpo("train", *words, *own, "output_dir=run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert audit(capsys, code=0) == {}


def rewrite(file, change):
    """Changes the rows of a file of JSON lines."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    change(rows)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def rewrite_completions(run, change):
    """Changes the completions of the first round, and closes the manifest anew, as a forger would."""
    file = run / "completions" / "step-00000001-rank-0.parquet"
    table = pq.read_table(file)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(table.from_pylist(rows), file)
    close_manifest(run)


def test_an_honest_run_has_the_same_everywhere(run, capsys):
    assert audit(capsys, code=0) == {}
    manifest = read_manifest(run)
    assert [start["step"] for start in manifest["starts"]] == [0]
    assert manifest["starts"][0]["own_files"].keys() == {"rewards.py"}
    assert {"metrics.jsonl", "checkpoints/step-00000002/SHA256SUMS", "model/model.safetensors"} <= manifest[
        "end"
    ].keys()
    assert json.loads((run / "model" / "manifest.json").read_text()) == manifest
    assert "`manifest.json` beside this card" in (run / "model" / "README.md").read_text()


def test_the_same_command_gives_the_same_bits(recorded, run, capsys):
    """Prompts, tokens, log-probabilities, rewards and every weight are the same, to the last bit."""
    with contextlib.chdir(recorded):
        done = grpo("train", *WORDS, "output_dir=again")
    assert done.returncode == 0, done.stderr[-3000:]
    pairs = [(recorded / name / "completions" / "step-00000002-rank-0.parquet") for name in ("run", "again")]
    assert pq.read_table(pairs[0]) == pq.read_table(pairs[1])
    weights = [(recorded / name / "model" / "model.safetensors").read_bytes() for name in ("run", "again")]
    assert weights[0] == weights[1]


def test_a_changed_metric_is_named(run, capsys):
    rewrite(run / "metrics.jsonl", lambda rows: rows[1].update({"reward/mean": rows[1]["reward/mean"] + 0.1}))
    found = audit(capsys, "recompute=false")
    assert found.keys() == {"records", "metrics of prompts", "metrics of completions"}
    assert found["records"] == "metrics.jsonl was changed after the run\n"
    assert "step 2: metrics.jsonl has reward/mean=" in found["metrics of completions"]


def test_a_changed_loss_is_named(run, capsys):
    rewrite(run / "metrics.jsonl", lambda rows: rows[0].update({"policy/loss": rows[0]["policy/loss"] + 0.01}))
    assert audit(capsys).keys() == {"records", "step 1: loss"}


def test_a_changed_reward_is_named_also_where_the_manifest_was_forged(run, capsys):
    def change(rows):
        rows[0]["reward"] += 0.5

    rewrite_completions(run, change)
    found = audit(capsys, "recompute=false")
    assert found.keys() == {"grades", "metrics of completions", "samples"}
    assert "sample 0 of" in found["grades"] and "when it is graded again" in found["grades"]


def test_a_changed_completion_is_named(run, capsys):
    def change(rows):
        rows[0]["token_ids"] = rows[0]["token_ids"][::-1] if len({*rows[0]["token_ids"]}) > 1 else [5, 5, 5]
        rows[1]["completion"] = "7" if rows[1]["reward"] < 0.1 else "seven"

    rewrite_completions(run, change)
    found = audit(capsys)
    assert "sample 1 of" in found["grades"]
    assert "sample 0 of" in found["step 1: log-probabilities"]


def test_a_prompt_that_was_left_out_is_named(run, capsys):
    def change(rows):
        rows[1].update({name: rows[1][name][1:] for name in ("prompt_ids", "correct", "lengths", "versions")})

    left_out = json.loads((run / "prompts.jsonl").read_text().splitlines()[1])["prompt_ids"][0]
    rewrite(run / "prompts.jsonl", change)
    found = audit(capsys, "recompute=false")
    assert found["prompts"] == f"step 2: prompts.jsonl lacks {left_out}, which was next\n"
    assert "groups/num_sampled=4.0, and other records give 3.0" in found["metrics of prompts"]


def test_other_problems_are_named(run, capsys):
    problems = Path("problems.jsonl").read_text()
    Path("problems.jsonl").write_text(problems.replace('"answer": "7"', '"answer": "8"'))
    assert "questions, answers or their order" in audit(capsys, "recompute=false")["problems"]


def test_an_edited_reward_function_is_named(run, capsys):
    Path("rewards.py").write_text(REWARD.replace("0.1", "0.2").replace("1.0", "0.9"))
    found = audit(capsys, "recompute=false")
    assert found["own files"].startswith("rewards.py was changed after the run: its SHA-256 was ")
    assert "when it is graded again" in found["grades"]


def test_a_damaged_checkpoint_and_another_configuration_are_named(run, capsys):
    config = json.loads((run / "config.json").read_text())
    config["learner"]["learning_rate"] = 0.5
    (run / "config.json").write_text(json.dumps(config))
    state = run / "checkpoints" / "step-00000002" / "state.json"
    state.write_text(state.read_text() + " ")
    found = audit(capsys, "recompute=false")
    assert "learner.learning_rate was" in found["configuration"] and "says 0.5" in found["configuration"]
    assert "step-00000002/state.json is damaged" in found["checkpoints"]


def test_records_of_how_the_run_began_that_cannot_be_read_differ(run, capsys):
    for name in ("config.json", "code.json"):
        (run / name).write_text("{")
    found = audit(capsys, "recompute=false")
    assert "config.json is damaged" in found["configuration"] and "code.json is damaged" in found["code"]


def forged(run, name, change):
    """Changes a file of JSON lines, or a JSON file."""
    file = run / name
    if file.suffix == ".jsonl":
        rewrite(file, change)
        return
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def test_records_that_do_not_fit_each_other_are_named_also_where_the_manifest_was_forged(run, capsys):
    def completions(rows):
        other = next(i for i, row in enumerate(rows) if row["completion"] != rows[0]["completion"])
        for name in ("token_ids", "tokens", "versions", "logprobs"):
            rows[0][name], rows[other][name] = rows[other][name], rows[0][name]
        rows[1]["logprobs"] = [float("nan")] * len(rows[1]["logprobs"])
        rows[2]["included"] = False

    def prompts(rows):
        for name in ("prompt_ids", "correct", "lengths", "versions"):
            rows[1][name].reverse()
        rows[1]["round"] = 7

    def answered(rows):
        problem = rows[0]["per_problem"][1]
        problem |= {"completion": problem["answer"], "correct": 0}

    def metrics(rows):
        rows[0].pop("policy/loss"), rows[1].pop("reward/std")
        rows[1]["learner/learning_rate"] = 0.5

    forged(run, "metrics.jsonl", metrics)
    forged(run, "prompts.jsonl", prompts)
    forged(run, "samples.jsonl", lambda rows: rows[-1].update(completion="nothing"))
    forged(run, "evaluations.jsonl", lambda rows: (rows.pop(0), rows[0]["pass@1"].update(value=0.9)))
    forged(run, "evaluations.jsonl", lambda rows: rows[0]["per_problem"][0].update(answer="70"))
    forged(run, "evaluations.jsonl", answered)
    forged(run, "end.json", lambda end: end.update(step=50))
    forged(run, "code.json", lambda code: code.update(commit="0" * 40))
    (run / "resumptions.jsonl").write_text('{"step": 1, "checkpoint": "", "reached": 1, "ended": "killed"}\n')
    checkpoint = run / "checkpoints" / "step-00000001"
    forged(checkpoint, "state.json", lambda state: state["progress"].update(cursor=9))
    forged(checkpoint, "state.json", lambda state: state["config"]["learner"].update(learning_rate=0.5))
    (checkpoint / "SHA256SUMS").unlink()
    write_checksums(checkpoint, SingleRank())
    model = run / "model" / "model.safetensors"
    save_file({name: -tensor for name, tensor in load_file(model).items()}, model, {"format": "pt"})
    rewrite_completions(run, completions)
    found = audit(capsys)
    for subject, fact in {
        "step 1: loss": "policy/loss is nan in the record",
        "step 1: log-probabilities": "sample 1 of",
        "texts": "step 1: sample 0 of",
        "course": "prompts.jsonl has round 7 in the place of round 1\nmanifest.json has starts at steps [0], and "
        "resumptions.jsonl has resumptions at steps [1]\nend.json has step 50, and metrics.jsonl ends at step 2\n",
        "metrics of prompts": "step 2: metrics.jsonl has reward/std=None, and other records give",
        "metrics of completions": "step 2: prompts.jsonl has the prompts in another order than completions",
        "samples": "step 2: samples.jsonl and completions/ have another completion of sample 3",
        "evaluations": "evaluations.jsonl has no line of step 0\nstep 2: evaluations.jsonl has pass@1=",
        "held-out problems": "is not what the data says of this held-out problem",
        "grades": "step 1: sample 2 of",
        "code": "commit in code.json is not what manifest.json says",
        "checkpoints": "step-00000001/state.json has cursor=9, and prompts.jsonl says 4\n"
        "step-00000001/state.json has learner.learning_rate=0.5",
        "model": "model/ has other weights than step-00000002",
    }.items():
        assert fact in found[subject], subject
    assert "learner/learning_rate=0.5, and other records give 0.0003" in found["metrics of prompts"]
    assert "whose first completion is right when it is graded again" in found["held-out problems"]
    assert "records" not in found


def test_rows_that_no_run_writes_are_named_with_their_line(run, capsys):
    forged(run, "metrics.jsonl", lambda rows: rows[1].update({"reward/mean": float("nan")}))
    assert "line 2 of run/metrics.jsonl: reward/mean must be a number, not nan" in audit(capsys)["records"]


def test_a_forged_manifest_differs_from_the_records(run, capsys):
    """Only its digests are right."""
    [first] = read_manifest(run)["starts"]

    def forge(manifest):
        start = manifest["starts"][0]
        manifest["end"].pop("samples.jsonl")
        start["own_files"].clear()
        start["config"]["learner"]["learning_rate"] = 0.5
        # Step 2 is said to be of a resumption with other settings.
        manifest["starts"].append({**start, "step": 1, "config": {**start["config"], "normalization": {"exponent": 0}}})

    forged(run, "manifest.json", forge)
    found = audit(capsys)
    assert found["records"] == "samples.jsonl was added after the run\n"
    assert found["own files"] == "rewards.py is not in manifest.json\n"
    assert (
        "step-00000001/state.json has learner.learning_rate=0.0003, and the run was started with 0.5"
        in (found["checkpoints"])
    )
    assert "model/manifest.json is not what manifest.json says" in found["course"]
    # Each step is computed by the settings of its start.
    assert "step 2: loss" in found and "step 1: loss" not in found
    assert "configuration" in found
    # A start after the last step took none, so config.json is that of the start before.
    (run / "manifest.json").write_text(
        json.dumps({"starts": [first, {**first, "step": 2, "config": {"num_steps": 2}}]})
    )
    found = audit(capsys, "recompute=false")
    assert "end.json says that the run has ended" in found["records"] and "configuration" not in found


def test_a_run_of_a_version_without_a_manifest_is_checked_as_far_as_it_goes(run, capsys):
    (run / "manifest.json").unlink()
    assert audit(capsys, "recompute=false")["manifest"] == "manifest.json is gone, and model/ has a copy of it\n"
    (run / "model" / "manifest.json").unlink()
    assert main(["audit", "run", "recompute=false"]) == 0
    said = capsys.readouterr().out
    assert "not checked  manifest: the run was made by a version without manifest.json" in said
    assert "not checked  steps: recompute=false" in said and "same         grades: 32 completions" in said


def test_a_round_whose_completions_are_gone_is_named_beside_one_that_has_them(run, capsys):
    [gone] = (run / "completions").glob("step-00000001-*")
    gone.unlink()
    assert main(["audit", "run", "recompute=false"]) == 1
    said = capsys.readouterr().out
    assert "differs      metrics of completions: step 1 has no completions in completions/\n" in said
    assert "same         samples: 8 completions in samples.jsonl" in said


def test_a_run_whose_completions_are_gone_is_checked_as_far_as_it_goes(run, capsys):
    shutil.rmtree(run / "completions")
    (run / "samples.jsonl").unlink()
    assert main(["audit", "run", "recompute=false"]) == 1
    said = capsys.readouterr().out
    assert "differs      records: samples.jsonl is gone" in said
    assert "differs      metrics of completions: step 1 has no completions in completions" in said
    assert "differs      samples: step 1 lacks some of the first 4 completions in samples.jsonl" in said
    assert "same         prompts: 8 prompts of 2 rounds" in said


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert main(["audit", str(tmp_path)]) == 2
    assert "has no config.json: give the folder of a run that has finished a round" in capsys.readouterr().err


def test_a_check_that_torch_refuses_is_a_difference_and_the_others_go_on():
    def check():
        yield Line("a", SAME, "1 fact")
        raise RuntimeError("shape '[3]' is invalid for input of size 2")

    first, second = tried("a", check)
    assert first.outcome == SAME and second.outcome == DIFFERS
