"""This module holds the checks of a diagnosis that look at episodes: calls of tools, turns, and failures.

A run of single turns has none of their metrics, and none of these findings.
"""

from grpo.insight.diagnosis.evidence import change, level
from grpo.insight.diagnosis.findings import NOTE, WARNING, DiagnosisRule, Finding
from grpo.insight.diagnosis.symptoms import throughout
from grpo.insight.logs.run_log import RunLog
from grpo.types import metrics as m

# A function may lead a conversation of several turns without any tool.
ONE_TURN = 1.02


def no_calls(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that the model calls no tool in nearly all episodes, never did, and has one turn in each."""
    share, without, turns = level(log[m.WITHOUT_CALLS]), log[m.WITHOUT_CALLS].values, log[m.TURNS].values
    if share is None or min(share.low, without.mean()) < rule.no_calls or turns.mean() > ONE_TURN:
        return None
    evidence = f"{without.mean():.1%} of all episodes call no tool, and {share.value:.1%} of the last ones"
    remedy = "ask for the tool in task.prompt.template; a model that was trained to call tools; read samples.jsonl"
    return Finding("no calls", WARNING, evidence, remedy)


def given_up(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    """Finds that the model has stopped to call tools. It may earn its reward without them."""
    share, rise = level(log[m.WITHOUT_CALLS]), change(log[m.WITHOUT_CALLS])
    if share is None or rise is None or share.low < rule.nearly_all or rise.low < rule.given_up:
        return None
    evidence = f"{share.value:.0%} of episodes call no tool, {share.value - rise.value:.0%} in the first rounds"
    remedy = "nothing if answers got better; or harder problems; or a part of task.reward.parts that pays for a call"
    return Finding("tools given up", NOTE, evidence, remedy)


def _surely_above(log: RunLog, metric: str, least: float) -> float | None:
    """Returns the present level of a share, or None unless all of its interval is at least `least`."""
    share = level(log[metric])
    return share.value if share is not None and share.low >= least else None


def unreadable_calls(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    if (share := _surely_above(log, m.UNREADABLE_CALLS, rule.unreadable)) is None:
        return None
    evidence = f"{share:.0%} of turns hold calls that cannot be read"
    remedy = "read samples.jsonl; a larger rollout.sampling.max_tokens if calls are cut off; task.prompt.chat_template"
    return Finding("unreadable calls", WARNING, evidence, remedy)


def failing_tools(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    if (share := _surely_above(log, m.FAILED_CALLS, rule.failing_calls)) is None:
        return None
    evidence = f"{share:.0%} of calls end in an exception of the tool"
    remedy = "read samples.jsonl for the tool and its error; describe its arguments better in its docstring"
    return Finding("tools fail", WARNING, evidence, remedy)


def out_of_turns(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    metric, least = m.OUT_OF_TURNS, rule.out_of_turns
    share = throughout(log, metric, least) or _surely_above(log, metric, least)
    if share is None:
        return None
    evidence = f"{share:.0%} of episodes end at the limit of turns"
    return Finding("out of turns", WARNING, evidence, "a larger task.limits.turns; read samples.jsonl for calls that "
                   "come again and again")  # fmt: skip


def failing_episodes(log: RunLog, rule: DiagnosisRule) -> Finding | None:
    if (share := _surely_above(log, m.EPISODES_FAILED, rule.failing_episodes)) is None:
        return None
    evidence = f"{share:.0%} of episodes end in an error of their own code, or take too long"
    remedy = "read samples.jsonl for the errors; a larger task.limits.seconds; task.limits.failed=truncate"
    return Finding("episodes fail", WARNING, evidence, remedy)
