"""This script simulates how long ranks wait for the busiest one, in optimizer steps and in sampling.

    python benchmarks/balance.py OUTPUT.json [SEEDS=4]

Completion lengths are log-normal, as in real runs, and a harder problem has a larger mean. Learning is counted in
floating-point operations of a 7B model, through the code that moves trees and lays out rows. Sampling is continuously
batched; a decode step takes WEIGHTS_MS, and SEQUENCE_MS for each running completion: a 7B model on an H100. The code
that deals prompts to ranks gets what could be known of their lengths, from nothing to all of them.
"""

import heapq
import json
import sys
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.ranks_in_threads import on_ranks
from grpo.algorithm.balance import balanced, imbalance, lay_out
from grpo.algorithm.packing import Branch, LooseTree, rows_of, trees_of
from grpo.learner.flops import FlopCount
from grpo.tasks.prompt_stream import dealt
from grpo.types import Completion

# Operations of a token, of a target and of a pair of tokens.
COST = FlopCount(39.2e9, 3.3e9, 1.2e6).of_run
WEIGHTS_MS, SEQUENCE_MS, AT_ONCE = 4.5, 0.02, 256
GROUP, SPREAD, HARDNESS = 16, 0.7, 0.4


def lengths(seed: int, prompts: int, median: int, longest: int, samples: int = GROUP) -> np.ndarray:
    """Returns completion lengths in tokens, [prompts, samples]. Equal seeds give the same problems."""
    hardness = np.random.default_rng(seed).normal(0, HARDNESS, prompts)
    means = np.log(median) + hardness[:, None]
    drawn = np.random.default_rng([seed, samples]).normal(means, SPREAD, (prompts, samples))
    return np.minimum(longest, np.exp(drawn).astype(int) + 2)


def row_work(rows: list[list[LooseTree]]) -> list[float]:
    return [
        sum(COST(0, len(tree.prompt)) + sum(COST(len(tree.prompt), length) for length in tree.lengths) for tree in row)
        for row in rows
    ]


def padded(by_rank: list[list[float]]) -> list[list[float]]:
    most = max(map(len, by_rank))
    return [own + [0.0] * (most - len(own)) for own in by_rank]


def learning(seed: int, ranks: int, prompts: int, silent: float, row_tokens: int) -> dict[str, float]:
    """Returns the slowest rank's work over the mean rank's, for ranks that compute rows in step, in three cases: rows
    as they come, rows after trees have moved between ranks, and rows made even. "work" is the total work of the last
    case over that of the first."""
    chosen = np.random.default_rng(seed)
    drawn = lengths(seed, prompts, 490, 1536)
    trees: list[list[LooseTree]] = [[] for _ in range(ranks)]
    for place, own in enumerate(drawn):
        prompt = (1,) * int(chosen.integers(60, 400))
        branches = [(prompt, Branch(Completion((1,) * int(n), (0.0,) * int(n), "", False), 0.0, 0.0)) for n in own]
        if chosen.random() >= silent:
            trees[place % ranks] += trees_of(branches, "shared", row_tokens)

    def action(collective):
        share = balanced(trees[collective.rank], collective, COST).trees
        return rows_of(share, row_tokens), lay_out(share, collective, "shared", row_tokens, COST)[0]

    moved, even = zip(*on_ranks(ranks, action), strict=True)
    stages = [
        [row_work(rows) for rows in stage] for stage in ([rows_of(own, row_tokens) for own in trees], moved, even)
    ]
    imbalances = [imbalance(padded(stage), in_step=True).value for stage in stages]
    work = [sum(map(sum, stage)) for stage in stages]
    return dict(zip(("as they come", "trees moved", "rows even"), imbalances, strict=True)) | {
        "work": work[2] / work[0]
    }


def engine_ms(own: np.ndarray) -> float:
    """Returns the milliseconds that one engine takes for completions of these lengths. The engine runs at most
    `AT_ONCE` completions at a time, first come, first served."""
    waiting, running, step, total = list(own)[::-1], [], 0, 0.0
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            heapq.heappush(running, step + waiting.pop())
        total += (running[0] - step) * (WEIGHTS_MS + SEQUENCE_MS * len(running))
        step = running[0]
        while running and running[0] == step:
            heapq.heappop(running)
    return total


def sampling(seed: int, ranks: int, prompts: int, median: int, longest: int) -> dict[str, float]:
    """Returns the slowest engine's time over the mean engine's, for each kind of advance knowledge of a prompt's
    completion lengths."""
    draw = partial(lengths, seed, prompts, median, longest)
    drawn = draw()
    known = {
        "nothing": np.ones(prompts),
        "an earlier group": draw(GROUP + 1).mean(1),
        "its mean": draw(400).mean(1),
        "all lengths": drawn.mean(1),
    }
    seconds = {}
    for what, expected in known.items():
        engines = np.array(dealt(list(expected), ranks))
        seconds[what] = [engine_ms(drawn[engines == rank].ravel()) for rank in range(ranks)]
    # Instead of whole groups, every prompt's samples are spread over all engines.
    spread = (np.arange(prompts)[:, None] + np.arange(GROUP)) % ranks
    seconds["samples spread"] = [engine_ms(drawn[spread == rank]) for rank in range(ranks)]
    return {way: max(own) / fmean(own) for way, own in seconds.items()}


def main(output: str, seeds: str = "4") -> None:
    results: dict[str, list] = {"learning": [], "sampling": []}
    steps = [(*size, silent, row) for size in ((8, 128), (32, 256)) for silent in (0.0, 0.5) for row in (2**14, 2**15)]
    rounds = [(8, 128, 490, 1536), (32, 256, 490, 1536), (32, 512, 490, 1536), (8, 256, 1800, 8192)]
    cases = {
        "learning": (learning, steps, ("ranks", "prompts", "silent", "row tokens")),
        "sampling": (sampling, rounds, ("ranks", "prompts", "median length", "longest")),
    }
    for name, (simulate, settings, words) in cases.items():
        for case in settings:
            runs = [simulate(seed, *case) for seed in range(int(seeds))]
            means = {column: fmean(run[column] for run in runs) for column in runs[0]}
            results[name].append(dict(zip(words, case, strict=True)) | means)
        table = Table(*results[name][0], title=name)
        for row in results[name]:
            table.add_row(*(f"{value:.3f}" if isinstance(value, float) else f"{value:,}" for value in row.values()))
        Console().print(table)
    Path(output).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
