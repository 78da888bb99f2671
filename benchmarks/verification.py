r"""This script counts how often the "math" reward misjudges rewritten right answers and near misses.

    python benchmarks/verification.py DATA [FILES] [PART] [MOST]

DATA is a folder of problem sets in Big-Math's row schema. FILES names sets, and n to take every n-th problem of each
(math500:1,aime24:1,aime25:1,gsm8k_test:40). PART is the reward (math, or an import path). MOST is how many golds of
each kind of number are used (10). answer_forms.py and answer_meaning.py make the forms.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from answer_forms import right_forms, wrong_forms
from answer_meaning import KINDS, NUMBERS, kind_of
from rich.console import Console
from rich.progress import track
from rich.table import Table

from grpo.config import RewardConfig, RewardPartConfig
from grpo.tasks.grader_pool import GraderPool

FILES = "math500:1,aime24:1,aime25:1,gsm8k_test:40"
# By hand: of kinds the data sets hold few or none of.
MORE = r"""25\% 12.5\% 0.5% Yes \text{No} \text{True} D \text{(A)} \text{C} 1011_2 7012_{8} 3\frac{1}{7} -2\frac{3}{4}
[0,1) (-\infty,3]\cup[5,\infty) \{1,2,3\} \{-\frac12,4\} x=\frac{1}{2} x=-3 x^2+y^2=25 0.000012 -0.75 299792458 x^2-1
\text{isosceles} \text{blue} 2^{10}-1 \begin{bmatrix}1&2\\3&4\end{bmatrix} \begin{pmatrix}0&-5\\2&1\end{pmatrix}"""


def cases(data: Path, files: dict[str, int], most: int) -> Iterator[tuple[str, str, str, bool]]:
    """Yields each (kind, gold, form, whether it is right) once, from about `most` golds of each kind of number."""
    rows = [
        json.loads(row) for name, n in files.items() for row in (data / f"{name}.jsonl").read_text().splitlines()[::n]
    ]
    golds = {row["answer"]: kind_of(row["answer"], row["problem"]) for row in rows}
    golds |= {answer: kind_of(answer, "") for answer in MORE.split()}
    words = {re.sub(r"\\text|[{}]", "", gold) for gold, kind in golds.items() if kind.startswith("text")}
    kinds = Counter(golds.values())
    seen: Counter[str] = Counter()
    for gold, kind in golds.items():
        seen[kind] += 1
        if kind in NUMBERS and seen[kind] % -(-kinds[kind] // most):
            continue
        right = {form for form in right_forms(kind, gold) if form.count("{") == form.count("}")}
        wrong = set(wrong_forms(kind, gold, words)) - right - {gold}
        yield from ((kind, gold, form, form in right) for form in sorted(right) + sorted(wrong))


def main(data: str, files: str = FILES, part: str = "math", most: str = "10") -> None:
    reward = RewardConfig(parts=[RewardPartConfig(name=part)], extract="boxed", timeout_seconds=10)
    chosen = {name: int(every) for name, every in (file.split(":") for file in files.split(","))}
    every = list(cases(Path(data), chosen, int(most)))
    table = Table("kind", "golds", "right", "refused", "rate", "wrong", "accepted", "rate", title=part)
    total, failures = Counter(), []
    with GraderPool(reward) as pool:
        for start in track(range(0, len(every), 100), console=Console(stderr=True)):
            chunk = every[start : start + 100]
            grades = pool.grade([(f"Hence the answer is $\\boxed{{{form}}}$.", gold, {}) for _, gold, form, _ in chunk])
            for (kind, gold, form, right), grade in zip(chunk, grades, strict=True):
                bad = (grade.parts[part] == 1) != right
                total.update({(kind, right, bad): 1, ("all", right, bad): 1})
                if bad or grade.outcome != "graded":
                    failures.append(f"{kind}\t{'right' if right else 'wrong'}\t{grade.outcome}\t{gold}\t{form!r}")
    for kind in (*KINDS, "all"):
        cells = []
        for right in (True, False):
            number_of, bad = total[kind, right, True] + total[kind, right, False], total[kind, right, True]
            cells += [str(number_of), str(bad), f"{100 * bad / max(number_of, 1):.2f} %"]
        table.add_row(kind, str(len({gold for k, gold, *_ in every if kind in (k, "all")})), *cells)
    Console().print(table)
    print("\n".join(failures))


if __name__ == "__main__":
    main(*sys.argv[1:])
