r"""This script gives hostile answers to the "math" reward: how long each takes, and whether anything was executed.

python benchmarks/hostile.py [SECONDS]          (the limit, 5)
"""

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from grpo.config import RewardConfig, RewardPartConfig
from grpo.tasks.grader_pool import GraderPool

MARK = Path(tempfile.mkdtemp()) / "executed"
CALL = f"__import__('os').system('touch {MARK}')"
HOSTILE = {
    "power tower": "9^{9^{9^{9}}}",
    "power tower, flat": "9^9^9^9",
    "power tower, python": "9**9**9**9",
    "factorial tower": "100!!!!!",
    "factorial of a factorial": "((100!)!)!",
    "1 MB of digits": "9" * 10**6,
    "1 MB of digits with commas": ",".join(["999"] * 250_000),
    "1 MB of nested braces": "{" * 500_000 + "}" * 500_000,
    "20,000 nested \\frac": r"\frac{1}{" * 20_000 + "2" + "}" * 20_000,
    "300 nested \\frac": r"\frac{1}{1+" * 300 + "2" + "}" * 300,
    "20,000 parentheses": "(" * 20_000 + "1" + ")" * 20_000,
    "300 parentheses": "(" * 300 + "1" + ")" * 300,
    "python call": CALL,
    "python call in text": rf"\text{{{CALL}}}",
    "python call as sum": f"1+{CALL}",
    "python call after number": f"5; {CALL}",
    "lambda": "(lambda: [].__class__.__base__.__subclasses__())()",
    "integral": r"\int_0^{10^{100}} \frac{\sin(x^{x})}{x^{100}+1} dx",
    "sum to 10^100": r"\sum_{n=1}^{10^{100}} \frac{1}{n^{n}}",
    "limit": r"\lim_{x\to\infty} \frac{x^{x^{x}}}{\Gamma(x)!}",
    "product": r"\prod_{n=1}^{10^{9}} n!",
    "binomial": r"\binom{10^{9}}{5\cdot 10^{8}}",
    "expansion": r"(a+b+c+d+e)^{10^5}",
    "equation system": r"x^{7}-x+\sin(x^{5})=y^{9}+\cos(xy)",
    "log of huge": r"\log_{2}(10^{10^{10}})",
    "huge exponent decimal": "1e999999999",
    "decimal to huge power": r"1.0000001^{10^{10}}",
    "long matrix": r"\begin{pmatrix}" + r"\\".join(["1 & 2 & 3"] * 5000) + r"\end{pmatrix}",
    "long sum": "+".join(["1"] * 20_000),
    "unicode soup": "".join(chr(code) for code in range(0x2000, 0x2FFF) if code not in range(0x2028, 0x202A)),
    "1 MB of spaces": "5" + " " * 10**6 + "5",
    "1 MB of text commands": r"\text{a}" * 125_000,
    "1 MB of letters": "a" * 10**6,
    "100 kB of '-'": "-" * 100_000 + "5",
    "100 kB of '$'": "$" * 100_000 + "5",
    "200 kB of '\\left('": r"\left(" * 33_000 + "5",
}


def main(seconds: str = "5") -> None:
    limit = float(seconds)
    table = Table("answer", "outcome", "seconds", title=f"limit {limit:g} s")
    reward = RewardConfig(parts=[RewardPartConfig(name="math")], timeout_seconds=limit)
    with GraderPool(reward) as pool:
        for name, form in HOSTILE.items():
            pool.grade([(r"\boxed{5}", "5", {})])  # a worker that was killed has been replaced: not counted
            start = time.monotonic()
            (grade,) = pool.grade([(f"So \\boxed{{{form}}}.", "5", {})])
            table.add_row(name, grade.outcome, f"{time.monotonic() - start:.2f}")
    Console().print(table)
    print("executed:", MARK.exists())


if __name__ == "__main__":
    main(*sys.argv[1:])
