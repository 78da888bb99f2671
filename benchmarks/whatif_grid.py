"""This script holds `grpo dynamics whatif` against runs of one task and rate that differ in their group size.

    python benchmarks/whatif_grid.py FOLDER

FOLDER holds runs by the name TASK-rRATE-GSIZE-sSEED. Each run that has risen predicts every other one of its task and
rate, at 95 % of the tokens that both have spent. A run that has not risen is refused.
"""

import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.whatif import Measured, setting_of
from grpo.insight.logs.logs import read_log
from grpo.insight.plans.whatif import has_risen, predict, stages_of


def cells(folder):
    """Returns the finished runs by task and rate: (TASK-rRATE) → {(SIZE, SEED): path}."""
    found = {}
    for path in sorted(folder.glob("*-G*-s*/end.json")):
        task, _, rest = path.parent.name.rpartition("-G")
        size, _, seed = rest.partition("-s")
        found.setdefault(task, {})[int(size), int(seed)] = path.parent
    return found


def predicted(source, target, runs, paths):
    """Returns low, middle and high of the prediction of `target` by `source`, and what came."""
    log = read_log(paths[source])
    amount = 0.95 * min(runs[key].spent["tokens"][-1] for key in (source, target))
    course = predict(log, stages_of(log, setting_of(paths[source])), setting_of(paths[target]), seed=1)
    noise = runs[target].error * np.random.default_rng(0).standard_normal(len(course.rates))
    low, middle, high = np.quantile(course.at("tokens", amount)["rates"] + noise, [0.05, 0.5, 0.95])
    return low, middle, high, runs[target].at("tokens", amount)


def main(folder):
    table = Table("task", "from G", "to G", "seeds", "prediction", "came", "inside")
    inside, misses, refused = [], [], 0
    for task, paths in cells(Path(folder)).items():
        runs = {key: Measured(path) for key, path in paths.items()}
        for source in paths:
            targets = [key for key in paths if key != source]
            if not has_risen(read_log(paths[source]).history):
                refused += len(targets)
                continue
            for target in targets:
                low, middle, high, came = predicted(source, target, runs, paths)
                inside.append(low <= came <= high)
                misses.append(came - middle)
                sizes, seeds = [str(key[0]) for key in (source, target)], f"{source[1]} → {target[1]}"
                words = f"{middle:.2f} [{low:.2f}, {high:.2f}]", f"{came:.2f}", "yes" if inside[-1] else "NO"
                table.add_row(task, *sizes, seeds, *words)
    Console().print(table)
    print(f"{sum(inside)} of {len(inside)} inside, {refused} refused, mean of came − middle {np.mean(misses):+.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
