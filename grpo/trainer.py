"""This module trains from Python: `Trainer` runs what `grpo train` runs, with data and rewards given as objects.

trainer = Trainer("experiment=tiny", dataset=rows, reward=my_reward)
result = trainer.train()
result.metrics.plot(y="reward/mean")
"""

import gc
import inspect
import json
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas

from grpo.config import RewardPartConfig, TrainConfig, UserError, trl_trainer
from grpo.config.complaints import paths
from grpo.config.errors import first_line, require
from grpo.config.folder import (
    CONFIG_FILE,
    DATA_FILE,
    EVALUATIONS_FILE,
    METRICS_FILE,
    MODEL_FOLDER,
    SAMPLES_FILE,
    refuse_several,
)
from grpo.config.hints import hint
from grpo.config.hydra import compose_config
from grpo.config.optimizer import with_learning_rate
from grpo.config.saved import described, from_dict, require_known
from grpo.config.start import begin_anew
from grpo.config.unread import refuse_unread
from grpo.config.validate import validate
from grpo.host import environment, ranks
from grpo.host.disk import open_own, require_writable
from grpo.host.imports import is_unguarded, look_here_last
from grpo.host.signals import handled_as_before
from grpo.run.early_checks import check
from grpo.types import FinishedRound
from grpo.types.imported import GIVEN, forget, given, import_path, under_way

Reward = Callable[..., Any]
Callback = Callable[[int, Mapping[str, float]], None]
Pair = tuple[str, Callable[..., Any]]

_WORDS = {
    "reward": "a reward that has a name here is a word, 'task.reward.parts=[{name: math}]'",
    "episode": "tools that come with grpo, programs and environments of verifiers are words, 'task.episode=calculator'",
}
"""These say what a word names beside each argument."""

UNGUARDED = 'a script has to call train() below `if __name__ == "__main__":`, since grading processes import it'
"""A script without that line is refused with this message. A grading process that reaches `train` exits with it."""


@dataclass(frozen=True, slots=True)
class Result:
    """A result is what a run left in its folder, as data frames. `Result("runs/x")` reads any run, at any time.

    The frames raise `UserError` if the folder does not exist, for example after a dry run without a `dataset`.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))

    @property
    def metrics(self) -> pandas.DataFrame:
        """Returns the metrics of each round, by optimizer step. Columns are named as in `grpo.telemetry.metrics`."""
        return self._frame(METRICS_FILE)

    @property
    def evaluations(self) -> pandas.DataFrame:
        """Returns the evaluations on held-out problems, by optimizer step."""
        return self._frame(EVALUATIONS_FILE)

    @property
    def samples(self) -> pandas.DataFrame:
        """Returns some completions of each round, with their question, answer and reward."""
        return self._frame(SAMPLES_FILE)

    @property
    def model(self) -> Path | None:
        """Returns the folder of the trained model, which transformers and vLLM load, or None if it was not exported."""
        folder = self.folder / MODEL_FOLDER
        return folder if folder.is_dir() else None

    def _frame(self, name: str) -> pandas.DataFrame:
        from grpo.telemetry.json_lines import read_metrics

        require(self.folder.is_dir(), f"there is no folder {self.folder}: give the output_dir of a run")
        refuse_several(self.folder)
        path, is_run = self.folder / name, any((self.folder / file).exists() for file in (CONFIG_FILE, METRICS_FILE))
        require(is_run, f"{self.folder} is the folder of no run: it has no {CONFIG_FILE}")
        frame = pandas.DataFrame(read_metrics(path) if path.exists() else [])
        return frame.set_index("step") if "step" in frame else frame


class Trainer:
    """A trainer runs one training run, with the configuration of the command line.

    words        arguments as of `grpo train`: ``"experiment=tiny"``, ``"num_steps=20"``, ``"my.yaml"``
    dataset      rows with the columns `task.data.question_column` and `answer_column`: a list of mappings, a data
                 frame, or a data set of the package datasets. None reads what the configuration names.
    reward       a function, or several, with a signature of `grpo.tasks.own_rewards`; they replace `task.reward.parts`.
                 Grading processes import a function that stands at the top of a file. They get any other one, such as
                 a lambda or one of a notebook's cell, with all that it uses, as it is when `train` is called.
    episode      a function that is a tool, or several, a class of environments, or a function that leads a conversation
                 (`grpo.episodes.forms`). They replace `task.episode`, and reach other processes as a reward does.
    after_round  a function that is called with (optimizer step, metrics of the round) on every rank

    `config` holds the whole configuration. Its values may be changed before `train` is called. Raises `UserError` for
    words that cannot be read.
    """

    _broken_off = False

    def __init__(
        self,
        *words: str,
        dataset: Iterable[Mapping[str, Any]] | None = None,
        reward: Reward | Sequence[Reward] = (),
        episode: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
        after_round: Callback | None = None,
        **unknown: Any,
    ) -> None:
        _require_none(unknown, "Trainer")
        wrong = [word for word in words if not isinstance(word, str)]
        require(not wrong, f"{_short(wrong[:1])} is no word: give each as a text of its own, such as 'experiment=tiny'")
        flags = [word for word in words if word.startswith("-")]
        require(not flags, f"{''.join(flags[:1])} is a flag of the command line: print `config` of a trainer instead")
        _require_callback(after_round)
        replaced = ["task.reward.parts=", "task.reward.by_source"] if reward != () else []
        replaced += ["task.data.path=", "task.data.source="] if dataset is not None else []
        replaced += ["task.episode="] if episode != () else []
        named = [word for word in words if word.startswith(tuple(replaced))]
        require(
            not named, f"{''.join(named[:1])} and reward=, dataset= or episode= say the same: leave one of both out"
        )
        environment.prepare()
        begin_anew()
        look_here_last()
        self.config: TrainConfig = compose_config([*words])
        self._path = self.config.task.data.path
        self._words = words
        if rewards := _by_path("reward", reward):
            self.config.task.reward.parts = [RewardPartConfig(name=path) for path, _ in rewards]
        played = _by_path("episode", episode, rewards)
        if len({path.rpartition(":")[0] for path, _ in played}) > 1:  # task.episode names a single file
            played = _by_path("episode", episode, rewards, given_all=True)
        if played:
            places, names = zip(*(path.rsplit(":", 1) for path, _ in played), strict=True)
            self.config.task.episode = f"{places[0]}:{','.join(names)}"
        self._given = {path: one for path, one in (*rewards, *played) if path.startswith(f"{GIVEN}:")}
        self._dataset = dataset
        self._after_round = after_round

    def __getattr__(self, name: str) -> Any:
        instead = trl_trainer.METHODS.get(name, "it has train() and config")
        raise AttributeError(f"grpo's Trainer has no {name}: {instead}")

    def train(self, **unknown: Any) -> Result:
        """Trains, and returns the run's result. Raises `UserError` for mistakes that the user can mend.

        A run that was asked to stop (Ctrl-C, SIGTERM) returns the result so far, and exports no model.
        The engines and vLLM servers that the run started end with it, also if it fails, and the process may train
        again. Two kinds of processes train once: ranks that a launcher started, and those with vLLM's engine on a GPU
        (rollout=vllm). `train` has to be called in the main thread, the one that gets Ctrl-C.
        """
        _require_none(unknown, "train()")
        if under_way() or getattr(multiprocessing.current_process(), "_inheriting", False):  # as in a grading process
            sys.exit(f"grpo: {UNGUARDED}")
        require(not is_unguarded(), UNGUARDED)
        # The user may have changed a file of rewards or losses since the process's last run.
        forget()
        self._require_sound()
        self.config = from_dict(asdict(self.config))
        given.clear()
        given.update(self._given)
        require(
            not Trainer._broken_off,
            "loading torch was interrupted in this process: start another one, or restart a notebook's kernel",
        )
        if self._dataset is None:
            config = self._checked()
        else:
            require_writable(Path(self.config.output_dir))
        try:
            import torch.distributed

            from grpo.run.session import train

            _require_gradients()
        except KeyboardInterrupt:
            # Half of torch stays imported then, and it cannot be imported a second time.
            Trainer._broken_off = True
            raise
        require(
            not torch.distributed.is_initialized(),
            "torch.distributed runs in this process already: ranks that a launcher started train once, so start other "
            "processes for the next run",
        )
        require(threading.current_thread() is threading.main_thread(), "train() runs in a process's main thread only")
        if self._dataset is not None:
            ranks.check_environment(self.config.output_dir)
            path = self._path = str(Path(self.config.output_dir) / DATA_FILE)
            self.config.task.data = replace(self.config.task.data, source="file", path=path)
            # The data of a run that is in this folder already must not be replaced.
            validate(self.config, ranks.counts(self.config.hardware, self.config.dry_run)[0])
            self._write_data()
            config = self._checked()
        with handled_as_before():
            train(config, () if self._after_round is None else [_Called(self._after_round)])
        # The parts of a learner refer to one another. Without this, a second run would find its memory still in use.
        gc.collect()
        return Result(Path(self.config.output_dir))

    def _require_sound(self) -> None:
        """Raises `UserError` where `config` has been changed into something that is no configuration of this run."""
        require(
            isinstance(self.config, TrainConfig),
            f"config={_short(self.config)} is no configuration: change the values of the one that the trainer has",
        )
        require_known(self.config)
        require(
            self._dataset is None or self.config.task.data.path == self._path,
            "config.task.data.path and dataset= say the same: leave one of both out",
        )

    def _checked(self) -> TrainConfig:
        """Returns the configuration with the model that it names. Raises `UserError` for what `grpo train` refuses
        before it imports torch."""
        config = with_learning_rate(replace(self.config, model=described(self.config.model)))
        check("train", config)
        refuse_unread(self._words, config)
        return config

    def _write_data(self) -> Path:
        """Writes the dataset into the run's folder. Every rank writes a whole file and renames it into place."""
        # A generator gives its rows once, and `train` may be called again.
        self._dataset = _rows(self._dataset)
        require(bool(self._dataset), "dataset= has no rows: give some")
        lines = [_line(index, row) for index, row in enumerate(self._dataset)]
        folder = Path(self.config.output_dir)
        written = folder / f".{DATA_FILE}-{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open_own(written, "w", encoding="utf-8") as file:
                file.writelines(lines)
            return written.replace(folder / DATA_FILE)
        except OSError as error:
            raise UserError(f"output_dir={folder} cannot be written to: {error}") from error


def _rows(dataset: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Returns the rows of a dataset. Raises `UserError` for a data frame that has a column twice."""
    require(
        not isinstance(dataset, str),
        f"dataset={dataset!r:.60} is a text: give rows, or 'task.data.source=file' (or hub) and 'task.data.path=NAME'",
    )
    for method in ("to_pylist", "to_dicts"):  # a table of pyarrow, and a frame of polars, which iterates over columns
        if hasattr(dataset, method):
            return getattr(dataset, method)()
    if not isinstance(dataset, Iterable) and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return [dataset[index] for index in range(len(dataset))]
    require(
        isinstance(dataset, Iterable),
        f"dataset={_short(dataset)} has no rows: give a list of them, or a data frame",
    )
    if not isinstance(dataset, pandas.DataFrame):
        return [*dataset]
    twice = dataset.columns[dataset.columns.duplicated()]
    require(twice.empty, f"dataset: the data frame has the column {twice[0] if len(twice) else ''!r} twice: rename one")
    return dataset.to_dict("records")


def _line(index: int, row: Any) -> str:
    """Returns a row as a line of JSON. Lone surrogates, which no file can hold, are escaped as in the rows' source."""
    require(
        isinstance(row, Mapping),
        f"dataset: row {index} is {_short(row)}, not a mapping from columns to values: give a list of such rows, "
        "a data frame, or one split of a data set, in Python's own format",
    )
    try:
        return json.dumps(dict(row), default=_plain) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"dataset: row {index}, {_short(row)}, cannot be written as JSON ({error}): columns need names that are "
            "texts, and values numbers, texts, or lists and mappings of them"
        ) from error


def _short(value: Any) -> str:
    try:
        return f"{' '.join(repr(value).split()):.60}"
    except Exception:  # a class of the user's, or a number of many digits
        return f"a {type(value).__name__}"


def _require_none(unknown: Mapping[str, Any], of: str) -> None:
    """Raises `UserError` for the first argument that `Trainer` or its `train` does not have."""
    keys = paths(TrainConfig())
    for name in unknown:
        instead = trl_trainer.ARGUMENTS.get(name) or (
            f"the word '{name}=VALUE'" if name in keys else f"a word, 'KEY=VALUE'{hint(name, keys)}"
        )
        raise UserError(f"{of} has no argument {name}=: give {instead}{' to Trainer' * (of != 'Trainer')}")


def _require_callback(function: Callback | None) -> None:
    """Raises `UserError` for what is no plain function of a step and its metrics."""
    if function is None:
        return
    fits = callable(function) and not inspect.isclass(function)
    fits = fits and not (inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function))
    # Some functions in C have no signature.
    with suppress(ValueError):
        try:
            inspect.signature(function).bind(1, {})
        except TypeError:
            fits = False
    require(
        fits,
        f"after_round={_short(function)} is no function of two arguments: give one that takes the step and the "
        "round's metrics",
    )


def _require_gradients() -> None:
    """Raises `UserError` inside a context of torch that changes what a step computes."""
    import torch

    try:
        device = torch.get_default_device().type
    except (AssertionError, RuntimeError) as error:
        raise UserError(f"torch.set_default_device() names a device that is not here ({first_line(error)})") from error
    for off, context in (
        (not torch.is_grad_enabled(), "torch.no_grad() or torch.inference_mode()"),
        (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"), "torch.autocast()"),
        (device == "meta", "torch.set_default_device('meta')"),
    ):
        require(not off, f"train() is called within {context}, which changes what is computed: call it outside")


def _plain(value: Any) -> Any:
    """Converts a value that JSON does not know: NumPy arrays to lists, NumPy scalars to numbers, others to text.

    Raises TypeError for an object whose text is only the name of its class, and a place in memory.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        raise TypeError("a set has no order: make it a list")
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    if re.search(r" at 0x[0-9a-fA-F]+>$", text):
        raise TypeError(f"type {type(value).__name__} has no text")
    return text


@dataclass(frozen=True, slots=True)
class _Called:
    """This observer calls a function with the metrics of each round."""

    function: Callback

    def after_round(self, finished: FinishedRound) -> None:
        from grpo.telemetry.metrics import flatten

        self.function(finished.statistics.step, flatten(finished.statistics))


def _by_path(argument: str, functions: Any, others: Sequence[Pair] = (), given_all: bool = False) -> list[Pair]:
    """Pairs functions with the paths under which other processes find them.

    One that no other process can import, and with `given_all` any, is named ``"given:NAME"``, with a number if several
    have that name, `others` too.
    """
    empty, pairs = isinstance(functions, list) and not functions, list[Pair]()
    require(not empty, f"{argument}=[] has no function: give one, or leave it out; {_WORDS[argument]}")
    for function in functions if isinstance(functions, list | tuple) else [functions]:
        require(
            callable(function),
            f"{argument}={function!r} is no function: give one or a list of them; {_WORDS[argument]}",
        )
        name = f"{GIVEN}:{getattr(function, '__name__', type(function).__name__).strip('<>')}"
        number = sum(path.partition("-")[0] == name for path, _ in (*others, *pairs))
        path = "" if given_all else import_path(function)
        pairs.append((path or name + (f"-{number + 1}" if number else ""), function))
    return pairs
