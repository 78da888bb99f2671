"""This module sends a run's metrics to Weights & Biases, TensorBoard and MLflow, besides the run's own files.

It also keeps a run going while a tracking service does not answer or refuses what it is sent.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo.config import TrackingConfig, UserError
from grpo.config.errors import first_line, require
from grpo.config.folder import CODE_FILE, PATCH_FILE, RUN_ID_FILE
from grpo.config.leaves import leaves
from grpo.config.plain_json import read_object
from grpo.config.start import run_name
from grpo.host.disk import write_whole
from grpo.host.terminal import say
from grpo.interfaces import Tracker
from grpo.telemetry.metrics import evaluation_numbers
from grpo.types import metrics as m

LONGEST_PARAMETER = 500
"""MLflow keeps at most this many characters of a parameter's value."""


def service_trackers(
    tracking: TrackingConfig, config: Mapping[str, Any], directory: Path, resume_step: int | None
) -> list[WandbTracker | TensorBoardTracker | MlflowTracker]:
    """Opens the trackers that `tracking` asks for. They keep their files in `directory`, the run's folder.

    Each tracker shows `config` and the contents of `code.json` in `directory`. With a `resume_step`, it continues the
    run that `directory` belongs to.
    """
    resume = resume_step is not None
    trackers: list[WandbTracker | TensorBoardTracker | MlflowTracker] = []
    if (mode := wandb_mode(tracking)) != "off":
        tracking = replace(tracking, wandb=mode)
        trackers.append(WandbTracker(config, tracking, directory, resume))
    if tracking.tensorboard:
        trackers.append(TensorBoardTracker(config, directory, resume_step))
    if tracking.mlflow:
        trackers.append(MlflowTracker(config, tracking, directory, resume))
    return trackers


def wandb_mode(tracking: TrackingConfig) -> str:
    """Returns `tracking.wandb`, unless W&B's own environment variables switch a tracked run off or offline. They never
    put a run online that is to stay offline. Raises `UserError` for a mode in which nothing would be tracked."""
    mode = os.environ.get("WANDB_MODE", "")
    if mode == "disabled" or os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1"):
        return "off"
    if tracking.wandb != "online" or mode in ("", "online", "run"):
        return tracking.wandb
    require(
        mode in ("offline", "dryrun"),
        f"the environment variable WANDB_MODE={mode} is neither online nor offline, and nothing would be tracked: "
        "unset it, or set tracking.wandb=off",
    )
    return "offline"


def _project(tracking: TrackingConfig, variable: str) -> str:
    """Returns `tracking.project`, or what the service's own variable says where the key has its default value."""
    if tracking.project != TrackingConfig.project:
        return tracking.project
    return os.environ.get(variable) or tracking.project


class WandbTracker:
    """This tracker logs to Weights & Biases, online, or offline below `directory`, from where `wandb sync` sends it.

    `resume` continues the run that `directory` belongs to: its id is kept in `directory`. A run that crashed is shown
    as such. Raises `UserError` when wandb cannot start.
    """

    service = "Weights & Biases"

    def __init__(
        self, config: Mapping[str, Any], tracking: TrackingConfig, directory: str | Path, resume: bool = False
    ) -> None:
        import wandb

        mode = tracking.wandb
        identity = Path(directory, "wandb", RUN_ID_FILE)
        identity.parent.mkdir(parents=True, exist_ok=True)
        if not (resume and identity.exists()):
            write_whole(identity, secrets.token_hex(4))
        # wandb's capture of the terminal would conflict with the live display.
        settings = wandb.Settings(console="off", quiet=True)
        try:
            # wandb.init would ask for a key at the terminal, where an unattended run would wait for ever.
            if mode == "online" and not wandb.login(prompt=False):
                raise UserError("wandb has no API key: run `wandb login`, or set tracking.wandb=offline")
            self._run = wandb.init(
                id=identity.read_text(),
                name=os.environ.get("WANDB_NAME") or run_name(Path(directory)),
                resume="allow" if mode == "online" else None,
                config={**config, "code": _code(directory)},
                mode=mode,
                project=_project(tracking, "WANDB_PROJECT"),
                entity=tracking.entity or None,
                group=tracking.group or None,
                job_type=tracking.job_type or None,
                tags=list(tracking.tags) or None,
                dir=str(identity.parent),
                settings=settings,
            )
        # wandb raises a ValueError when one of its environment variables has an unknown value.
        except (wandb.Error, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"wandb did not start ({reason}): correct that, or set tracking.wandb=offline") from error
        self._table = wandb.Table
        # wandb's table of runs shows this summary.
        self._run.define_metric(f"{m.EVALUATION}pass@1", summary="max")
        if Path(directory, PATCH_FILE).exists():
            self._run.save(str(Path(directory, PATCH_FILE)), base_path=str(directory), policy="now")

    def log(self, values: Mapping[str, Any], step: int) -> None:
        self._run.log(_numbers(values), step=step)

    def evaluation(self, result: Mapping[str, Any], step: int) -> None:
        self._run.log(evaluation_numbers(result), step=step)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        rows = list(rows)
        if rows:
            # Episodes have columns that single turns lack.
            columns = [*dict.fromkeys(column for row in rows for column in row)]
            data = [[row.get(column) for column in columns] for row in rows]
            self._run.log({"samples": self._table(columns=columns, data=data)}, step=step)

    def close(self, failed: bool = False) -> None:
        self._run.finish(exit_code=int(failed))


class TensorBoardTracker:
    """This tracker writes event files in `directory`/tensorboard, for `tensorboard --logdir`.

    A resumed run hides the events after `resume_step` that were written before it was killed. A new run hides all
    earlier events. Raises `UserError` when the package is not installed.
    """

    service = "TensorBoard"

    def __init__(self, config: Mapping[str, Any], directory: str | Path, resume_step: int | None = None) -> None:
        _package("tensorboard", "tracking.tensorboard=false")
        from torch.utils.tensorboard import SummaryWriter

        # A new run hides what an earlier one, which left no checkpoint, has written into the same folder.
        purge = 0 if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(str(Path(directory, "tensorboard")), purge_step=purge)
        if resume_step is None:
            self._writer.add_text("config", _fenced(json.dumps(config, indent=1)), 0)
            self._writer.add_text("code", _fenced(json.dumps(_code(directory), indent=1)), 0)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        for name, value in _numbers(values).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def evaluation(self, result: Mapping[str, Any], step: int) -> None:
        self.log(evaluation_numbers(result), step)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        for index, row in enumerate(rows):
            self._writer.add_text(f"samples/{index}", _fenced(json.dumps(row, indent=1, ensure_ascii=False)), step)

    def close(self, failed: bool = False) -> None:
        self._writer.close()


class MlflowTracker:
    """This tracker logs a run of the experiment `tracking.project` to MLflow.

    `tracking.mlflow` is a server's address, sqlite:///FILE or file:FOLDER. `resume` continues the run that `directory`
    belongs to. Raises `UserError` when the package is not installed or the server does not answer.
    """

    service = "MLflow"

    def __init__(
        self, config: Mapping[str, Any], tracking: TrackingConfig, directory: str | Path, resume: bool = False
    ) -> None:
        uri, project = tracking.mlflow, _project(tracking, "MLFLOW_EXPERIMENT_NAME")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        # By default MLflow retries a server that does not answer for ten minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        mlflow = _package("mlflow", 'tracking.mlflow=""')
        _require_database(uri)
        identity = Path(directory, f"mlflow-{RUN_ID_FILE}")
        self._metric = mlflow.entities.Metric
        try:
            self._client = mlflow.MlflowClient(uri)
            if resume and identity.exists():
                self._id = identity.read_text()
                self._client.update_run(self._id, status="RUNNING")
                return
            experiment = self._client.get_experiment_by_name(project)
            self._id = self._client.create_run(
                experiment.experiment_id if experiment else self._client.create_experiment(project),
                run_name=run_name(Path(directory)),
                tags=dict.fromkeys(tracking.tags, "true"),
            ).info.run_id
            write_whole(identity, self._id)
            for name, value in leaves(config):
                self._client.log_param(self._id, allowed_name(name), str(value)[:LONGEST_PARAMETER])
            for file in (CODE_FILE, PATCH_FILE):
                if Path(directory, file).exists():
                    self._client.log_artifact(self._id, str(Path(directory, file)))
        except mlflow.exceptions.MlflowException as error:
            reason = first_line(error)
            raise UserError(
                f'MLflow at {uri} did not start ({reason}): correct that, or set tracking.mlflow=""'
            ) from error

    def log(self, values: Mapping[str, Any], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(allowed_name(name), value, now, step) for name, value in _numbers(values).items()]
        self._client.log_batch(self._id, metrics)

    def evaluation(self, result: Mapping[str, Any], step: int) -> None:
        self.log(evaluation_numbers(result), step)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        self._client.log_text(self._id, text, f"samples/step-{step:06d}.jsonl")

    def close(self, failed: bool = False) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def allowed_name(name: str) -> str:
    """Returns a metric's name with what MLflow does not allow in it replaced. A source of problems may have any name.

    >>> allowed_name("evaluation/pass@4"), allowed_name("source/new (2025)/reward"), allowed_name("source/../share")
    ('evaluation/pass_at_4', 'source/new _2025_/reward', 'source/__/share')
    """
    parts = re.sub(r"[^\w.\-/ ]", "_", name.replace("@", "_at_")).split("/")
    # MLflow reads the name as a path, which has neither empty parts nor dots alone.
    return "/".join("_" * max(1, len(part)) if part.strip(".") == "" else part for part in parts)


def _require_database(uri: str) -> None:
    """Raises `UserError` for an SQLite file that cannot be opened, since MLflow would try again for two minutes."""
    file = uri.removeprefix("sqlite:///")
    if file == uri:
        return
    try:
        with closing(sqlite3.connect(file)) as database:
            database.execute("PRAGMA user_version")
    except sqlite3.Error as error:
        raise UserError(f'tracking.mlflow={uri}: {error}: correct the path, or set it to ""') from error


class Trackers:
    """This tracker passes everything on to several trackers.

    It closes them at the end of a `with`. If the body raises, they are closed as those of a failed run. A call that a
    tracking service fails ends no run: a line says so once, and later calls try again, since the service may come back.
    The run's own files hold whatever it has missed.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)
        self._failed: set[str] = set()

    def log(self, values: Mapping[str, Any], step: int) -> None:
        self._each(f"step {step}", "log", values, step)

    def evaluation(self, result: Mapping[str, Any], step: int) -> None:
        self._each(f"step {step}", "evaluation", result, step)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        self._each(f"step {step}", "samples", list(rows), step)

    def close(self, failed: bool = False) -> None:
        """Closes all trackers. A second call does nothing, so the first call's `failed` stands."""
        self._each("the end", "close", failed)
        self._trackers = ()

    def _each(self, when: str, name: str, *arguments: Any) -> None:
        for tracker in self._trackers:
            service = getattr(tracker, "service", None)
            try:
                getattr(tracker, name)(*arguments)
            # Each service has errors of its own, and those of the network and the disk come on top.
            except Exception as error:
                if service is None:
                    raise
                if service not in self._failed:
                    self._failed.add(service)
                    reason = " ".join(str(error).split())[:300] or type(error).__name__
                    say(
                        f"grpo: {service} failed at {when} ({reason}): the run goes on and tries it again; the run's "
                        "own files hold all numbers"
                    )

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(failed=kind is not None)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Drops lists and texts, which only the run's own files hold."""
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _fenced(text: str) -> str:
    return f"```\n{text}\n```"


def _code(directory: str | Path) -> Any:
    """Returns the contents of `code.json`, or None when there is no such file."""
    file = Path(directory, CODE_FILE)
    return read_object(file) if file.exists() else None


def _package(name: str, without: str) -> ModuleType:
    """Imports a tracker's package. If it is missing, raises `UserError` with `without`, the setting that turns the
    tracker off."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"{name} is not installed ({error}); in a clone of grpo: pip install '.[trackers]', or set {without}"
        ) from error
