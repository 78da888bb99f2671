"""This module reads the rows of a file of problems, or of a folder of such files, as mappings from columns to cells."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from grpo.config import UserError
from grpo.config.errors import first_line, require
from grpo.config.folder import is_pointer

PACKED = ".gz"
SEPARATORS = ",;\t|"
PACKED_BEGINNINGS = {b"\x1f\x8b": (PACKED, "gzip"), b"PAR1": (".parquet", "Parquet")}
"""Files of these two kinds begin so, whatever their names say. Each kind has an ending and a name."""
SHOWN = 3
"""An error shows so many names of an object."""
ZIPPED = b"PK\x03\x04"
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""The package datasets writes these files into a folder by `save_to_disk`: for one data set, and for several splits."""

# A file's name says by one of these words which split it holds, as in test-00000-of-00001.parquet.
_SPLIT = re.compile(r"(?<![^\W_])(train|test|valid|validation|val|dev|eval)(?![^\W\d_])", re.IGNORECASE)
_SAVE_AGAIN = "write it again by save_to_disk, or give a file"


def read_rows(path: Path, key: str) -> list[dict[str, Any]]:
    """Reads the rows of a JSON Lines, JSON, CSV, TSV or Parquet file, of a folder of such files in alphabetical order,
    or of a data set that `save_to_disk` wrote.

    Text files may be compressed with gzip. Raises `UserError` when the rows cannot be read. `key` is the setting that
    names the file, for the error's message.
    """
    if path.is_dir():
        return _of_folder(path, key)
    if _ending(path) not in READERS:
        raise UserError(f"{key} {str(path)!r} must end in one of {', '.join(READERS)}, or be a folder of such files.")
    if not path.is_file():
        _refuse_broken_link(path, key)
        missing = "no regular file" if path.exists() else "no file"
        raise UserError(f"{key}: there is {missing} {str(path)!r}{_instead(str(path))}.")
    with path.open("rb") as file:
        beginning = file.read(max(map(len, PACKED_BEGINNINGS)))
    require(not is_pointer(path), f"{path} is only Git LFS's pointer to the file: fetch it with `git lfs pull`.")
    require(
        not beginning.startswith(ZIPPED),
        f"{path} is a table of Excel or another zipped file by its content: export it as CSV, or unpack it.",
    )
    for start, (ending, kind) in PACKED_BEGINNINGS.items():
        require(
            not beginning.startswith(start) or path.suffix.lower() == ending,
            f"{path} is a {kind} file by its content: rename it so that it ends in {ending}.",
        )
    try:
        rows = READERS[_ending(path)](path)
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {path}, which is not UTF-8 text ({error.reason}): save it as UTF-8.") from error
    except RecursionError as error:
        raise UserError(f"cannot read {path}, whose brackets are nested too deeply: correct the file.") from error
    except MemoryError as error:
        raise UserError(f"cannot read {path}, whose rows do not fit into memory: give a smaller file.") from error
    except (ValueError, csv.Error, OSError, EOFError) as error:
        raise UserError(f"cannot read {path}: {first_line(error)}; correct the file.") from error
    listed = rows if isinstance(rows, list) else [None]
    if wrong := [number for number, row in enumerate(listed, start=1) if not isinstance(row, dict)]:
        which = f"; row {wrong[0]} is none" if wrong[0] > 1 else ""
        if len(listed) == 1 and isinstance(listed[0], list):
            which = ", and this one line is a list: name the file .json"
        if isinstance(rows, dict):
            which = (
                f"; it is one object with {', '.join(list(rows)[:SHOWN])}: keep the list alone, as pandas writes it by "
                'to_json(FILE, orient="records")'
            )
        raise UserError(
            f"{path} must hold a row for each problem: a list of JSON objects, or in .jsonl one in each line{which}."
        )
    return rows


def require_file(path: str, key: str) -> None:
    """Raises `UserError` if there is neither a file nor a folder at `path`, which the setting `key` names."""
    _refuse_broken_link(Path(path), key)
    require(Path(path).exists(), f"{key}: there is no file {path!r}{_instead(path)}.")


def _refuse_broken_link(path: Path, key: str) -> None:
    broken = path.is_symlink() and not path.exists()
    target = os.readlink(path) if broken else ""
    require(not broken, f"{key}: {str(path)!r} is a link to {target!r}, where no file is: correct the link.")


def _instead(path: str) -> str:
    """Returns a hint at what to give instead of a path that is no file's, or "" where none is known.

    >>> _instead("data/*.jsonl")
    '; patterns are not expanded: give the folder, whose files are read in alphabetical order'
    """
    if path.startswith("file://"):
        return f"; give it without file://, {path.removeprefix('file://')}"
    if "://" in path:
        return "; files are read from disk only: download it first"
    if set(path) & {*"*?["}:
        return "; patterns are not expanded: give the folder, whose files are read in alphabetical order"
    return "; a data set of the hub needs task.data.source=hub" if re.fullmatch(r"[\w-]+/[\w.-]+", path) else ""


def size_of(path: Path) -> int:
    """Returns the bytes of a file, or of the files in a folder, as far as `read_rows` looks at them."""
    files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def _ending(path: Path) -> str:
    """Returns the ending that says how to read a file, in lower case, with the ending .gz removed."""
    packed = path.suffix.lower() == PACKED
    ending = Path(path.stem).suffix.lower() if packed else path.suffix.lower()
    return "" if packed and ending == ".parquet" else ending


def _of_folder(folder: Path, key: str) -> list[dict[str, Any]]:
    if (folder / SAVED_SPLITS).exists():
        splits = sorted(place.name for place in folder.iterdir() if (place / SAVED).exists())
        require(bool(splits), f"{key}: {folder} is a data set of splits, of which none is there: {_SAVE_AGAIN}")
        raise UserError(f"{key}: {folder} holds the splits {', '.join(splits)}: name one of them, {folder}/{splits[0]}")
    if (folder / SAVED).exists():
        import datasets

        try:
            return rows_of(datasets.load_from_disk(str(folder)).with_format("arrow")[:])
        except Exception as error:  # the package raises many kinds, all of which mean that the set cannot be loaded
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UserError(f"{key}: {folder} is a damaged data set ({reason}): {_SAVE_AGAIN}") from error
    # A name that begins with a dot is hidden, such as the ._x.csv that a Mac puts beside x.csv.
    shown = sorted(place for place in folder.iterdir() if not place.name.startswith("."))
    files = [file for file in shown if file.is_file() and _ending(file) in READERS]
    inside = next((str(place) for place in shown if place.is_dir()), "")
    hint = f"; folders inside it are not looked into: give one of them, such as {inside}" if inside else ""
    require(bool(files), f"{key}: the folder {folder} has no file that ends in one of {', '.join(READERS)}{hint}.")
    splits = {found[0].lower(): file for file in reversed(files) if (found := _SPLIT.search(file.name))}
    require(
        len(splits) < 2,
        f"{key}: the folder {folder} holds several splits, {', '.join(sorted(file.name for file in splits.values()))}: "
        f"name one file, such as {next(iter(splits.values()), '')}, or a folder of one split",
    )
    return [row for file in files for row in read_rows(file, key)]


def _opened(path: Path, newline: str | None = None) -> TextIO:
    opener = gzip.open if path.suffix.lower() == PACKED else open
    return opener(path, "rt", encoding="utf-8-sig", newline=newline)


def _read_jsonl(path: Path) -> list[Any]:
    rows = []
    with _opened(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    rows.append(json.loads(line.rstrip(), object_pairs_hook=_of_pairs))
                except ValueError as error:
                    if number == 1 and line.lstrip().startswith("["):
                        raise ValueError(
                            "it is one list, and a name in .jsonl wants a row in each line: name it .json"
                        ) from error
                    # Python counts lines within this one, so its own message would name line 1 as well.
                    where = re.sub(r": line 1 column (\d+) \(char \d+\)$", r" in its column \1", str(error))
                    comma = ": end it without a comma" if "Extra" in where and line.rstrip()[-1] == "," else ""
                    raise ValueError(f"line {number} is not JSON ({where}){comma}") from error
    return rows


def _read_json(path: Path) -> Any:
    """Reads a file of one JSON value, or of JSON Lines, which many files with the ending .json hold."""
    with _opened(path) as file:
        text = file.read()
    try:
        return json.loads(text, object_pairs_hook=_of_pairs)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            raise
    return _read_jsonl(path)


def _of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object. Raises ValueError for a repeated name, of which Python would keep the last value."""
    row = dict(pairs)
    if len(row) < len(pairs):
        _refuse_repeated([name for name, _ in pairs])
    return row


def _refuse_repeated(names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"the column {twice[0]!r} comes twice")


def _read_table(path: Path) -> list[dict[str, Any]]:
    """Reads a CSV or TSV file. The separator is the first of comma, semicolon and tab that the header contains. Empty
    lines are passed over.

    Raises ValueError for a repeated column, and for a row with more cells than the header: an unquoted comma would move
    the end of a question into the answer's column.
    """
    csv.field_size_limit(sys.maxsize)
    with _opened(path, newline="") as lines:
        start, header = 0, lines.readline()
        while header and not header.strip():
            start, header = lines.tell(), lines.readline()
        named = "\t" if path.suffix == ".tsv" else ""
        separator = named or next((mark for mark in SEPARATORS if mark in header), ",")
        lines.seek(start)
        reader = csv.DictReader(lines, delimiter=separator, strict=True)
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        if any("\0" in name for name in names):
            raise ValueError("its header has NUL characters, so it is perhaps UTF-16: save it as UTF-8")
        if names and names[0].startswith("{"):
            raise ValueError("it is JSON Lines by its content: rename it so that it ends in .jsonl")
        _refuse_repeated([name for name in names if name])
        return list(_table_rows(reader, names))


def _table_rows(reader: csv.DictReader[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table. Raises ValueError, with its line, for one that does not fit the header."""
    begins = 2
    try:
        for row in reader:
            if None in row:
                count = len(names) + len(row[None])
                raise ValueError(
                    f"line {reader.line_num} has {count} cells and the header {len(names)}: put a text with "
                    f"{reader.reader.dialect.delimiter!r} in quotes"
                )
            yield dict(row)
            begins = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"the row that begins in line {begins} has quotation marks that do not fit ({error})"
        ) from error


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    _refuse_repeated(pyarrow.parquet.read_schema(path).names)
    return rows_of(pyarrow.parquet.read_table(path))


def rows_of(table: Any) -> list[dict[str, Any]]:
    """Returns the rows of a table of pyarrow. A number of a float32 column, or within a nested one, is the shortest
    decimal that rounds to it: 3.3, which somebody wrote, and not 3.299999952316284."""
    rows = table.to_pylist()
    for field in (field for field in table.schema if re.search(r"\bfloat\b", str(field.type))):
        for row in rows:
            row[field.name] = _shortest(row[field.name], field.type)
    return rows


def _shortest(value: Any, kind: Any) -> Any:
    import numpy
    import pyarrow.types as types

    if types.is_float32(kind):
        return None if value is None else float(str(numpy.float32(value)))
    if isinstance(value, dict) and types.is_struct(kind):
        return {field.name: _shortest(value[field.name], field.type) for field in kind}
    is_list = isinstance(value, list) and hasattr(kind, "value_type")
    return [_shortest(one, kind.value_type) for one in value] if is_list else value


READERS: dict[str, Callable[[Path], Any]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".parquet": _read_parquet,
}
