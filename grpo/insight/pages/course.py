"""This module says how a run ended or still goes on, where it was resumed, and how it had ended before that."""

from collections.abc import Sequence
from pathlib import Path

from grpo.host.folder_lock import is_locked
from grpo.host.terminal import clean
from grpo.insight.pages.glossary import setting
from grpo.insight.pages.page import PAGE, Block, Kind
from grpo.telemetry.ending import FAILED, FINISHED, INTERRUPTED, KILLED, Resumption, read_ending
from grpo.telemetry.json_lines import Row

# How a run had ended before it was resumed.
ENDED = {
    FINISHED: "it had finished at step {}",
    INTERRUPTED: "it had been interrupted at step {}",
    FAILED: "it had failed at step {}",
    KILLED: "it had been killed, or its machine was lost, at step {}",
}
CAPTION = (
    "The steps after a checkpoint are taken again, and their numbers replace the earlier ones. A dotted line marks "
    "each of these places in the charts."
)


def describe_state(output: Path, metrics: Sequence[Row], config: Row) -> str:
    """Says whether a run finished, was interrupted, failed, still goes on or was killed, and at which step."""
    ending, step = read_ending(output), metrics[-1]["step"] if metrics else 0
    steps = f"step {step:,} of {config['num_steps']:,}" if "num_steps" in config else f"step {step:,}"
    if ending is None:
        if is_locked(output):
            return f"still goes on, at {steps}"
        if step == config.get("num_steps"):
            return f"finished at {steps}"
        return f"ended at {steps} without a word: it was killed, or its machine was lost"
    if ending.state == FINISHED:
        return f"finished at {steps}" + (f": {ending.why}" if ending.why else "")
    if ending.state == INTERRUPTED:
        return f"interrupted at {steps}; checkpoint.resume=true goes on"
    return f"failed at {steps}: {clean(ending.why)}"


def unfinished(name: str, state: str) -> list[str]:
    """Returns a sentence for an unfinished run, and no sentence for a finished one. `state` comes from
    `describe_state`."""
    if state.startswith(FINISHED):
        return []
    return [f"{name} {'was ' if state.startswith(INTERRUPTED) else ''}{state.rstrip('.')}."]


def how_often(resumptions: Sequence[Resumption]) -> list[str]:
    """Returns a sentence on how often a run was resumed, and where. Returns none on a run that never was."""
    if not resumptions:
        return []
    if len(resumptions) == 1:
        return [f"The run was resumed {where(resumptions)}: {before(resumptions[0]).rstrip('.')}."]
    return [f"The run was resumed {len(resumptions)} times, {where(resumptions)}."]


def where(resumptions: Sequence[Resumption]) -> str:
    """Says where a run was resumed, as "after step 10" or "after steps 10 and 20"."""
    *others, last = [f"{resumption.step:,}" for resumption in resumptions]
    return f"after steps {', '.join(others)} and {last}" if others else f"after step {last}"


def before(resumption: Resumption) -> str:
    """Says how a run had ended before it was resumed, and why."""
    # A later version may know further words.
    how_ended = ENDED.get(resumption.ended, "it had ended at step {}").format(f"{resumption.reached:,}")
    return f"{how_ended}: {clean(resumption.why)}" if resumption.why else how_ended


def resumptions_table(resumptions: Sequence[Resumption]) -> list[Block]:
    """Returns the table of a run's resumptions, and no table for a run that was never resumed."""
    header = ["resumed after step", "from the checkpoint", "before that", "steps taken again", "settings changed"]
    rows = [header, *map(_row, resumptions)]
    return [Block(Kind.TABLE, rows, "Where the run was resumed", CAPTION, PAGE)] if resumptions else []


def _row(resumption: Resumption) -> list[str]:
    repeated_steps = f"{resumption.reached - resumption.step:,}"
    changed_keys = ", ".join(f"{key}: {setting(old)} → {setting(new)}" for key, old, new in resumption.changed)
    return [f"{resumption.step:,}", resumption.checkpoint, before(resumption), repeated_steps, changed_keys or "none"]


def resumed_at(resumptions: Sequence[Resumption]) -> list[int]:
    """Returns the steps after which the logged numbers come from a resumed run.

    A resumption that a later one undid, by going on from an earlier checkpoint, is left out.
    """
    return [
        resumption.step
        for index, resumption in enumerate(resumptions)
        if all(later.step >= resumption.step for later in resumptions[index + 1 :])
    ]
