"""This module finds problems so gross that a few rounds prove them, however short the run is.

The other checks of a diagnosis need 10 or 20 rounds to tell a trend from luck. Here nothing is estimated: a share of
completions or groups has to be near 1 in every single one of the last rounds.
"""

from __future__ import annotations

from grpo.insight.diagnosis.evidence import FEWEST_ROUNDS
from grpo.insight.diagnosis.findings import CRITICAL, NOTE, WARNING, DiagnosisRule, Finding
from grpo.insight.logs.run_log import RunLog

# A share counts only if it comes from at least this many groups. If .65 of all groups were silent, 16 of 16 would be
# silent in one run of 1,000.
FEWEST_GROUPS = 16
# In a log without counts of groups, a share of completions needs this many rounds. A share of groups would need
# `FEWEST_GROUPS`, which is more than the `FEWEST_ROUNDS` looked at, so it never counts.
FEWEST_UNCOUNTED = 3


def mostly_cut_off(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that nearly all completions of each round are cut off.

    The finding is critical, or a warning where many of the completions that are cut off are right all the same.
    """
    share = throughout(log, "completions/truncated_fraction", rule.nearly_all)
    if share is None:
        return None
    severity = WARNING if _right_beyond(log, 1 - share, rule) else CRITICAL
    evidence = f"{share:.0%} of completions are cut off, and more than {rule.nearly_all:.0%} in each of the last rounds"
    remedy = "a larger rollout.sampling.max_tokens, or ask for shorter answers in task.prompt.template"
    return Finding("truncated", severity, evidence, remedy)


def unanswered(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that in nearly all completions of each round no answer is found.

    Returns None where completions are right without such an answer, by a custom reward, or are cut off before it.
    """
    share = throughout(log, "completions/no_answer_fraction", rule.nearly_all)
    if share is None or _right_beyond(log, 1 - share, rule) or mostly_cut_off(log, rule):
        return None
    evidence = f"no answer is found in {share:.0%} of completions"
    remedy = "read samples.jsonl; task.reward.extract=final, or ask for that form in task.prompt.template"
    return Finding("no answers found", CRITICAL, evidence, remedy)


def _right_beyond(log: RunLog, share: float, rule: DiagnosisRule) -> bool:
    """Tells whether the pass rate of the last rounds is above both 2 × `share` and the rule's `hopeless`."""
    pass_rates = log["pass_rate"].values[-FEWEST_ROUNDS:]
    return len(pass_rates) > 0 and float(pass_rates.mean()) > max(2 * share, rule.hopeless)


def silence(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that nearly all groups of each round are silent, or without a right answer, in a run of a few rounds."""
    rounds = len(log["groups/silent_fraction"])
    right, wrong = (log[f"groups/all_{kind}_fraction"].values for kind in ("correct", "wrong"))
    silent = throughout(log, "groups/silent_fraction", rule.nearly_all, FEWEST_GROUPS)
    failed = throughout(log, "groups/all_wrong_fraction", rule.nearly_all, FEWEST_GROUPS)
    if silent is None and failed is None:
        return None
    if silent is None:
        evidence = f"{failed:.0%} of groups hold no right answer in the {rounds} rounds so far"
        return difficulty(evidence, False, None, rule, silent=False)
    easy = len(right) > 0 and right.mean() > wrong.mean()
    pass_rate = float(log["pass_rate"].values.mean()) if len(log["pass_rate"]) else None
    return difficulty(f"{silent:.0%} of groups are silent in the {rounds} rounds so far", easy, pass_rate, rule)


def difficulty(evidence: str, easy: bool, passed: float | None, rule: DiagnosisRule, silent: bool = True) -> Finding:
    """Returns the finding that prompts are too easy or too hard, or that they are solved.

    The remedy advises to replace silent groups only where many groups are `silent`. Otherwise rewards differ though
    hardly any answer is right, so something else than right answers is rewarded, and a lower `correct_at` is advised.
    """
    replaced = ", or normalization=dapo to replace silent groups"
    if easy and passed is not None and passed > rule.solved:
        return Finding("problems solved", NOTE, evidence, "stop here, or continue with harder problems")
    if easy:
        return Finding("prompts too easy", WARNING, evidence, "harder problems" + (replaced if silent else ""))
    otherwise = ", or a lower task.reward.correct_at if what is rewarded counts as right"
    remedy = "easier problems, a larger dynamics.group_size" + (replaced if silent else otherwise)
    return Finding("prompts too hard", WARNING, evidence, remedy)


def throughout(log: RunLog, name: str, least: float, fewest: int = FEWEST_UNCOUNTED) -> float | None:
    """Returns the mean of a share over the last rounds, if it was above `least` in each of them, and else None.

    Also returns None if these rounds have fewer than `FEWEST_GROUPS` groups or, in a log without counts of groups, if
    they are fewer than `fewest`.
    """
    late = log[name].values[-FEWEST_ROUNDS:]
    if not len(late) or late.min() <= least:
        return None
    groups = sum(sum(counts.values()) for counts in log.counts[-len(late) :])
    enough = groups >= FEWEST_GROUPS if log.counts else len(late) >= fewest
    return float(late.mean()) if enough else None
