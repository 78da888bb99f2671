"""This module copies a run's folder to an object store while the run goes on, and fetches it on a new machine.

`checkpoint.upload` is an address that fsspec reads (s3://, gs://, az://, hf://, sftp://, file://). Files have the same
names there as in `output_dir`. A thread copies, so that training never waits for the store and never fails with it.
A checkpoint's list of checksums is copied last, so that half a checkpoint is never taken for a whole one, and the size
of each copy is compared. Contents are compared by the checksums when a run goes on from a copy.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import fsspec
from fsspec.implementations.local import LocalFileSystem

from grpo.config import CheckpointConfig
from grpo.config.errors import UserError, first_line, require
from grpo.config.folder import (
    CHECKPOINTS,
    CHECKSUMS_FILE,
    COMPLETIONS_FOLDER,
    LAUNCHER_FILE,
    LOCK_FILE,
    MODEL_FOLDER,
    checkpoints_in,
    completions_in,
    step_of,
)
from grpo.host.alive import working
from grpo.host.terminal import say
from grpo.run.export_source import scores_in
from grpo.types import FinishedRound

PROBE = ".grpo-can-write"
FETCHING = ".fetching-"
OF_THIS_MACHINE = (LOCK_FILE, LAUNCHER_FILE)
WITH_BUCKETS = ("s3://", "s3a://", "gs://", "gcs://", "az://")
"""The packages for these stores make a bucket where there is none, even for a misspelt name."""
LAST_SECONDS = 1800.0
"""A run that has ended waits for the store as long as this."""
LATE = 3
"""A store is slow if newer checkpoints are made while each of this many is sent."""
LAST_TRIES, PAUSE_SECONDS = 3, 10.0
"""The thread tries so often to send the last files of a run, with pauses in between."""


class Upload:
    """The upload keeps a copy of the run in `run` at `address`. It is an observer, which is called after each round."""

    def __init__(self, address: str, run: Path):
        """Raises UserError for an address that is none, or where nothing can be written."""
        self._address, self._run = address, run
        with _one_line(address, "nothing can be written there", "correct the address, or the credentials for it"):
            self._store, self._root = fsspec.core.url_to_fs(address)
            if isinstance(self._store, LocalFileSystem):
                _require_apart(address, Path(self._root).resolve(), run.resolve())
            bucket = self._root.lstrip("/").partition("/")[0]
            require(
                not address.startswith(WITH_BUCKETS) or self._store.exists(bucket),
                f"checkpoint.upload={address}: there is no bucket {bucket}: correct the address, or make the bucket",
            )
            self._store.makedirs(self._root, exist_ok=True)
            self._store.pipe_file(self._there(PROBE), b"")
            self._store.rm_file(self._there(PROBE))
            # Files of completions → their bytes in the store at the start, and when those were written that it has now.
            self._sizes, self._written = self._completions_there(), dict[str, int]()
        # The checkpoints that this start has sent, and all that are known to be there.
        self._sent: set[str] = set()
        self._known: set[str] = set()
        self._wanted, self._ends, self._complaint, self._late = threading.Event(), False, "", 0
        self._thread = threading.Thread(target=self._work, name="upload", daemon=True)

    def fetch(self) -> None:
        """Fetches the run's records, newest and best checkpoint, if the run has none here and one is there."""
        if checkpoints_in(self._run / CHECKPOINTS):
            return
        with _one_line(self._address, "no checkpoint could be fetched", f"try again, or copy the run to {self._run}"):
            lists = ((name, self._there(CHECKPOINTS, name, CHECKSUMS_FILE)) for name in self._checkpoints())
            whole = [name for name, checksums in lists if self._store.exists(checksums)]
            if not whole:
                return
            for entry in self._store.ls(self._root, detail=True):
                name = PurePosixPath(entry["name"]).name
                if entry["type"] == "file" and name not in OF_THIS_MACHINE:
                    self._get(entry["name"], self._run, PurePosixPath(name))
            for name in self._sizes:
                self._get(self._there(COMPLETIONS_FOLDER, name), self._run, PurePosixPath(COMPLETIONS_FOLDER, name))
            scores = scores_in(self._run)
            scored = [name for name in whole if step_of(Path(name)) in scores]
            best = max(scored, key=lambda name: scores[step_of(Path(name))], default=whole[-1])
            folders = [self._fetched(name) for name in dict.fromkeys((whole[-1], best))]
            # The newest comes first, since the run would go on from the best if an interrupted fetch left it alone.
            for folder in folders:
                folder.rename(folder.with_name(folder.name.removeprefix(FETCHING)))

    def _fetched(self, name: str) -> Path:
        """Fetches a checkpoint into a folder of another name."""
        say(f"grpo: fetching {name} from {self._address}")
        folder, source = self._run / CHECKPOINTS / f"{FETCHING}{name}", self._there(CHECKPOINTS, name)
        for file in self._store.find(source):
            self._get(file, folder, PurePosixPath(file).relative_to(source))
        return folder

    def require_unused(self) -> None:
        """Raises UserError where another run's checkpoints are, for a run that begins."""
        with _one_line(self._address, "nothing can be read there", "correct the address, or the credentials for it"):
            names = self._checkpoints()
        require(
            not names,
            f"checkpoint.upload={self._address} holds a run's checkpoints already: name another address, or go on from "
            "them with checkpoint.resume=auto",
        )

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Copies while the body of the `with` runs, and all that is left when it has ended, the model too."""
        self._thread.start()
        try:
            yield
        finally:
            self._ends = True
            self._wanted.set()
            with working(f"sending the rest to {self._address}"):
                self._thread.join(LAST_SECONDS)
            if self._thread.is_alive():
                say(f"grpo: checkpoint.upload: {self._address} did not answer; not all of {self._run} is there")

    def after_round(self, finished: FinishedRound) -> None:
        """Begins to copy what is new."""
        self._wanted.set()

    # --- in the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        tries = 0
        while tries < LAST_TRIES:
            self._wanted.wait()
            self._wanted.clear()
            if ends := self._ends:
                self._wanted.set()
            try:
                self._copy(ends)
                self._complaint, tries = "", LAST_TRIES * ends
            except Exception as error:
                tries += ends
                complaint = f"{type(error).__name__}: {first_line(error)[:300]}"
                if tries == LAST_TRIES or (complaint != self._complaint and not ends):
                    later = f"it is in {self._run} alone" if ends else "the run goes on and tries again"
                    say(f"grpo: checkpoint.upload: not all could be sent to {self._address} ({complaint}); {later}")
                self._complaint = complaint
                if 0 < tries < LAST_TRIES:
                    time.sleep(PAUSE_SECONDS)

    def _copy(self, everything: bool) -> None:
        """Copies the checkpoints that the store lacks, the newest first, and before each the records, without which no
        run goes on."""
        while (new := self._lacking()) or everything:
            for file in (*self._records(), *(self._model() if everything else ())):
                self._put(file)
            self._put_completions()
            everything = False
            # The run may remove a checkpoint meanwhile.
            if new and self._send(new[-1]):
                self._sent.add(new[-1].name)
                self._known.add(new[-1].name)
            if new:
                self._tell_if_late(new[-1])
        here = {folder.name for folder in checkpoints_in(self._run / CHECKPOINTS)}
        for name in self._sent - here if here else ():
            self._store.rm(self._there(CHECKPOINTS, name), recursive=True)
            self._sent.discard(name)
            # One of this name may be saved anew.
            self._known.discard(name)

    def _lacking(self) -> list[Path]:
        """Returns the checkpoints that the store lacks, in the order of their steps."""
        here = checkpoints_in(self._run / CHECKPOINTS)
        return [folder for folder in here if folder.name not in self._known and not self._has(folder)]

    def _records(self) -> list[Path]:
        return [file for file in sorted(self._run.iterdir()) if file.is_file() and file.name not in OF_THIS_MACHINE]

    def _put_completions(self) -> None:
        """Copies the files of completions that the store lacks, or that this run has written since it got them."""
        for file, _ in completions_in(self._run / COMPLETIONS_FOLDER):
            with suppress(FileNotFoundError):  # a resumed run removes those of the rounds that it takes again
                written, size = file.stat().st_mtime_ns, file.stat().st_size
                known = self._written.get(file.name, written if self._sizes.get(file.name) == size else 0)
                if known != written:
                    self._put(file)
                self._written[file.name] = written

    def _completions_there(self) -> dict[str, int]:
        """Returns the files of completions that the store has, with their bytes."""
        folder = self._there(COMPLETIONS_FOLDER)
        entries = self._store.ls(folder, detail=True) if self._store.exists(folder) else ()
        sizes = {PurePosixPath(entry["name"]).name: entry["size"] for entry in entries}
        return {name: size for name, size in sizes.items() if name.startswith("step-")}

    def _model(self) -> list[Path]:
        return [file for file in sorted((self._run / MODEL_FOLDER).rglob("*")) if file.is_file()]

    def _tell_if_late(self, sent: Path) -> None:
        """Prints a line once the run has made newer checkpoints while each of the last `LATE` was sent."""
        newest = checkpoints_in(self._run / CHECKPOINTS)[-1:]
        self._late = self._late + 1 if newest and newest[0].name > sent.name else 0
        if self._late == LATE:
            say(
                f"grpo: checkpoint.upload: {self._address} takes longer for a checkpoint than the run, which has made "
                f"{newest[0].name} while {sent.name} was sent: raise checkpoint.every_rounds"
            )

    def _send(self, folder: Path) -> bool:
        remote = self._there(CHECKPOINTS, folder.name)
        if self._store.exists(remote):
            self._store.rm(remote, recursive=True)
        try:
            files = sorted(filter(Path.is_file, folder.rglob("*")), key=lambda file: file.name == CHECKSUMS_FILE)
            for file in files:
                self._put(file)
        except FileNotFoundError:
            if folder.exists():
                raise
            self._store.rm(remote, recursive=True)
            return False
        return True

    def _put(self, file: Path) -> None:
        remote, size = self._there(*file.relative_to(self._run).parts), file.stat().st_size
        self._store.makedirs(remote.rpartition("/")[0], exist_ok=True)
        self._store.put_file(str(file), remote)
        there = self._store.info(remote)["size"]
        # A log may have grown while it was copied.
        if there < size:
            raise OSError(f"{file.name} has {there} bytes there and {size} here")

    def _has(self, folder: Path) -> bool:
        """Says whether the store has this very checkpoint, by its list of checksums."""
        remote = self._there(CHECKPOINTS, folder.name, CHECKSUMS_FILE)
        try:
            same = self._store.exists(remote) and self._store.cat_file(remote) == (folder / CHECKSUMS_FILE).read_bytes()
        except FileNotFoundError:  # the run may remove a checkpoint meanwhile
            return False
        if same:
            self._known.add(folder.name)
        return same

    def _checkpoints(self) -> list[str]:
        """Returns the names of the checkpoints that the store has, in the order of their steps."""
        folder = self._there(CHECKPOINTS)
        paths = self._store.ls(folder, detail=False) if self._store.exists(folder) else ()
        return sorted(name for name in (PurePosixPath(path).name for path in paths) if name.startswith("step-"))

    def _there(self, *parts: str) -> str:
        return "/".join((self._root.rstrip("/"), *parts))

    def _get(self, remote: str, folder: Path, name: PurePosixPath) -> None:
        # The keys of a store may be any text.
        require(".." not in name.parts, f"checkpoint.upload={self._address} holds {name}, which leads out of the run")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        self._store.get_file(remote, str(folder / name))


def _require_apart(address: str, there: Path, run: Path) -> None:
    """Raises UserError for a folder of copies that is the run's own, or lies in it or around it."""
    require(
        not (there == run or there in run.parents or run in there.parents),
        f"checkpoint.upload={address}: the copy would lie among the files of {run} itself: name a folder apart from it",
    )


@contextmanager
def _one_line(address: str, what: str, remedy: str) -> Iterator[None]:
    """Turns an error of a store into a UserError. Each kind of store raises its own."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)[:300]}"
        raise UserError(f"checkpoint.upload={address}: {what} ({reason}): {remedy}") from error


def opened(config: CheckpointConfig, run: Path) -> Upload | None:
    """Opens the upload of the run in `run`, and fetches what it goes on from. Returns None without an address."""
    if not config.upload:
        return None
    upload = Upload(config.upload, run)
    if config.resume:
        upload.fetch()
    else:
        upload.require_unused()
    return upload
