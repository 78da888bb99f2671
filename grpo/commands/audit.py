"""This module implements `grpo audit`, which says whether a run did what its configuration says."""

from collections.abc import Sequence

from rich.text import Text

from grpo.audit.lines import ALL, ENDS, NONE
from grpo.commands.words import one_of, paths_and_settings, typed
from grpo.config import UserError
from grpo.config.errors import require
from grpo.config.folder import CONFIG_FILE, METRICS_FILE, refuse_several
from grpo.host.alive import working
from grpo.host.terminal import Terminal

USAGE = """usage: grpo audit RUN [recompute=false|all]

Compares what a run has left with what it was made from, and says line by line what is the same, what differs, and what
could not be checked:

  configuration, code, versions, device, own files, weights and problems, as manifest.json names them
  every record, with the digest that the run wrote when it ended, and every checkpoint with its checksums
  rounds, resumptions, checkpoints and the end, with one another
  metrics, with those that follow from settings, prompts and completions; texts, with their tokens
  evaluations, with their own problems, and these with the data
  prompts, with the order that seed and data give
  grades, by grading the recorded completions again
  log-probabilities, advantages, token weights and the loss of the first and the last round whose completions and
  starting policy are there, by a naive computation in float64 (grpo/audit/reference.py), and the model, with the last
  checkpoint

The last four need the problems and the model. recompute=false leaves out the last, which is slow for large models, and
recompute=all computes every round that it can. A run with tracking.completions=all and its checkpoints can be checked
best. The exit code is 1 if something differs, else 0. Only the digests see a change of times, norms, entropies, of the
page or the card, and whoever can change the manifest too can make new digests."""

COLOURS = {"same": "green", "differs": "bold red", "not checked": "yellow"}


def run(words: Sequence[str]) -> int:
    """Prints the lines of the audit. Returns the exit code."""
    folders, settings = paths_and_settings(words)
    if len(folders) != 1:
        raise UserError("grpo audit needs the folder of one run (grpo audit help)")
    [output] = folders
    settings = typed(settings, recompute=one_of(NONE, ENDS, ALL))
    refuse_several(output)
    for name in (CONFIG_FILE, METRICS_FILE):
        require((output / name).exists(), f"{output} has no {name}: give the folder of a run that has finished a round")
    with working("loading torch and transformers"):
        from grpo.audit.audit import audited

    console, outcomes = Terminal(), []
    for line in audited(output, settings.get("recompute", ENDS)):
        outcomes.append(line.outcome)
        console.print(
            Text(f"{line.outcome:<11}  ", COLOURS[line.outcome]),
            Text(f"{line.subject}: {line.fact}"),
            sep="",
            soft_wrap=True,
        )
    differing, unchecked = outcomes.count("differs"), outcomes.count("not checked")
    console.print(f"{outcomes.count('same')} are the same, {differing} differ, {unchecked} could not be checked")
    return int(differing > 0)
