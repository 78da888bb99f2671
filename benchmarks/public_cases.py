"""This script tries one of our rewards on the public cases of reward-doctor (pip install reward-doctor).

python benchmarks/public_cases.py [REWARD] [EXTRACT]          (math, final)
"""

import sys

from reward_doctor.audit import audit
from rich.console import Console
from rich.table import Table

from grpo.config import RewardConfig, RewardPartConfig
from grpo.tasks.grader_pool import GraderPool


def main(reward: str = "math", extract: str = "final") -> None:
    with GraderPool(RewardConfig(parts=[RewardPartConfig(name=reward)], extract=extract)) as pool:

        def grade(completion: str, reference: str) -> float:
            (graded,) = pool.grade([(completion, reference, {})])
            return graded.parts[reward] if graded.outcome == "graded" else 0.0

        result = audit(grade, name=f"{reward}, {extract}")
    print(result.headline)
    for title, outcomes in (("failed", result.outcomes), ("a matter of taste", result.contested)):
        table = Table("category", "reference", "completion", "should", "did", "why", title=title)
        for outcome in outcomes:
            if title != "failed" or not outcome.passed:
                case, verdicts = outcome.case, ("reject", "accept")
                wanted, given = verdicts[case.expect], verdicts[bool(outcome.accepted)]
                table.add_row(case.category, case.reference, case.completion, wanted, given, case.why)
        Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
