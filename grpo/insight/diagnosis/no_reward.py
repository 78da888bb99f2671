"""This module finds runs that learn nothing because no completion is ever rewarded, and says why.

The other checks of a diagnosis need many rounds; one round's numbers are enough here.
"""

from collections.abc import Mapping

import numpy as np

from grpo.dynamics.history import NO_HISTORY
from grpo.insight.diagnosis.findings import CRITICAL, DiagnosisRule, Finding
from grpo.insight.diagnosis.setbacks import broken
from grpo.insight.logs.run_log import RunLog, Series
from grpo.types import metrics as m

# Each cause is the share of a round's completions in a metric, its meaning, and a remedy. The first share above one
# half explains why there is no reward.
_CAUSES = (
    (m.TIMED_OUT, "of the completions took longer to grade than task.reward.timeout_seconds allows",
     "raise task.reward.timeout_seconds, set task.reward.workers=8, or mend the reward function"),
    (m.FAILED, "of the completions made the reward function fail",
     "mend the function; the warnings above show an example"),
    (m.RAISED, "of the completions are in groups for which the reward function raised an exception",
     "mend the function, or let it return 0 where it means 0; the warnings above show an example"),
    (m.LATE, "of the completions are in groups that were given up",
     "raise rollout.group_deadline_seconds, or lower rollout.sampling.max_tokens"),
    (m.UNANSWERED, "of the completions are in groups for which a reward server did not answer",
     "look after the server; a longer server.seconds, or a smaller server.at_once, gives it more time"),
    (m.UNPARSABLE, "of the completions belong to problems whose own answer cannot be read",
     "choose another task.data.answer_column, or set task.data.answer_pattern or task.reward.parts=[{name: exact}]"),
    (m.EPISODES_FAILED, "of the episodes failed or took too long",
     "mend the episode's code, or raise task.limits.seconds; the warnings above show an example"),
    (m.FAILED_CALLS, "of the calls of tools failed",
     "mend the tool: the model reads its exception, which is in samples.jsonl"),
    (m.OUT_OF_TURNS, "of the episodes ended at the limit of turns",
     "raise task.limits.turns, or read samples.jsonl for calls that come again and again"),
    (m.OUT_OF_ROOM, "of the episodes filled model.max_length",
     "raise model.max_length, or let tools and environment say less"),
    (m.TRUNCATED, "of the completions were cut off before they ended",
     "raise rollout.sampling.max_tokens, or ask for shorter answers in task.prompt.template"),
    (m.NO_ANSWER, "of the completions hold no answer in the form that task.reward.extract looks for",
     "set task.reward.extract=final, or ask for that form in task.prompt.template"),
)  # fmt: skip
_BY_EPISODES = (
    m.RAISED,
    "of the completions are in groups in which an episode failed",
    "mend the episode's code, or raise task.limits.seconds where it takes too long; the warnings above show an example",
)
_EXPLAINED = {
    m.TRUNCATED: (m.OUT_OF_TURNS, m.OUT_OF_ROOM, m.EPISODES_FAILED),
    m.EPISODES_FAILED: (m.RAISED,),
}
_DIFFICULTY = (
    "answers are found and graded, and none is right",
    "compare answers in samples.jsonl; choose easier problems, a larger dynamics.group_size, or another "
    "task.reward.parts",
)


_UNGRADED = (m.UNANSWERED, m.RAISED, m.LATE, m.UNPARSABLE)


def shares(metrics: Mapping[str, float]) -> str:
    """Returns one line on how a round's completions were graded. `metrics` are named as in metrics.jsonl.

    The share of right ones is that of the completions that could be graded. Shares of trouble that are 0 are left out.

    >>> shares({"pass_rate": 0.0, "completions/no_answer_fraction": 0.5, "completions/truncated_fraction": 0.0})
    'of the completions 0% are right, 50% hold no answer'
    >>> shares({"completions/truncated_fraction": 0.0})
    'of the completions 0% were cut off'
    """
    words = {
        m.PASS_RATE: "are right",
        m.TRUNCATED: "were cut off",
        m.NO_ANSWER: "hold no answer",
        m.TIMED_OUT: "timed out in grading",
        m.FAILED: "failed in grading",
    }
    logged = [name for name in words if name in metrics]
    named = [name for index, name in enumerate(logged) if index == 0 or metrics[name]]
    shares_in_words = [f"{metrics[name]:.0%} {words[name]}" for name in named]
    if ungraded := sum(metrics.get(name, 0.0) for name in _UNGRADED):
        shares_in_words.append(f"{ungraded:.0%} could not be graded and count neither as right nor as wrong")
    return "of the completions " + ", ".join(shares_in_words)


def warnings(metrics: Mapping[str, float], before: Mapping[str, float] | None = None) -> dict[str, str]:
    """Returns warnings, by topic, about problems so gross that the metrics of one round show them.

    `before` are the metrics of the round before, if there is one. They tell whether its step broke the model.
    """
    lines = {}
    all_zero = metrics.get(m.REWARD) == 0.0 and metrics.get(m.REWARD_STD, 0.0) == 0.0
    if before and (finding := broken(_log_of(before, metrics), DiagnosisRule())):
        lines["no reward"] = f"{finding.evidence} ⇒ {finding.remedy}"
    elif all_zero:
        evidence, remedy = why(metrics)
        lines["no reward"] = f"every reward is 0, so nothing was learned: {evidence} ⇒ {remedy}"
    for name, meaning, remedy in _causes(metrics):
        # A line before names the cause of this one.
        explained = not lines.keys().isdisjoint(_EXPLAINED.get(name, ()))
        if not (all_zero or explained) and metrics.get(name) == 1.0:
            lines[name] = f"100% {meaning} ⇒ {remedy}"
    if 0.0 < metrics.get(m.LENGTH, 2.0) <= 1.0:
        lines["empty"] = (
            "every completion is a single token, so the model stops before it answers: read samples.jsonl, and check "
            "task.prompt.chat and task.prompt.template"
        )
    return lines


def _log_of(*rounds: Mapping[str, float]) -> RunLog:
    """Returns the log of a few rounds."""
    names = set.intersection(*(set(metrics) for metrics in rounds))
    steps = np.array([metrics["step"] for metrics in rounds], float)
    return RunLog(NO_HISTORY, {name: Series(steps, np.array([row[name] for row in rounds], float)) for name in names})


def _causes(metrics: Mapping[str, float]) -> list[tuple[str, str, str]]:
    by_episodes = bool(metrics.get(m.EPISODES_FAILED))
    return [_BY_EPISODES if cause[0] == m.RAISED and by_episodes else cause for cause in _CAUSES]


def why(metrics: Mapping[str, float]) -> tuple[str, str]:
    """Returns the evidence of why no completion gets a reward, and the remedy.

    If a round's metrics show no other cause, the problems are too hard.
    """
    for name, meaning, remedy in _causes(metrics):
        if metrics.get(name, 0.0) > 0.5:
            return f"{metrics[name]:.0%} {meaning}", remedy
    if m.NO_ANSWER in metrics:
        return _DIFFICULTY
    whole = "few completions are cut off, and " if m.TRUNCATED in metrics else ""
    return f"{whole}the log does not say why", f"{_DIFFICULTY[1]}; see whether answers are found at all"


def no_reward(log: RunLog) -> Finding | None:
    """Finds that every reward has been 0 since the first round, or that no completion could be graded at all."""
    reward, spread = log[m.REWARD], log[m.REWARD_STD]
    latest = {name: series.values[-1] for name, series in log.series.items() if len(series)}
    evidence, remedy = why(latest)
    if not len(reward) and any(log[name].values.any() for name in _UNGRADED):
        return Finding("nothing graded", CRITICAL, f"no completion could be graded; {evidence}", remedy)
    if not len(reward) or reward.values.any() or spread.values.any():
        return None
    return Finding("no reward", CRITICAL, f"every reward is 0; {evidence}", remedy)
