"""How small random models of many architectures are computed, and how far from their own eager forward pass.

    python benchmarks/architectures.py

Prints a row for each model of tests/learner/architectures.py: the table of the README's "Models".
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo.host import environment

environment.prepare()


def main() -> None:
    from grpo.learner.loading import prove_config
    from tests.learner.architectures import ARCHITECTURES, config_of

    for name in ARCHITECTURES:
        proof = prove_config(name, config_of(name))
        way = "in trees" if proof.in_trees else "one completion a row"
        print(f"| {name} | {way} | {proof.difference:.0e} | {proof.reason} |", flush=True)


if __name__ == "__main__":
    main()
