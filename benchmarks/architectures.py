"""This script measures how far packed rows differ from a model's own eager forward pass, for many architectures.

    python benchmarks/architectures.py
    python benchmarks/architectures.py all [TYPE …]

Prints a row for each model of small_models.py: the table of the README's "Models". With `all`, a row for
each causal model type of transformers with its default config, and how many types there are of each kind.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo.host import environment

environment.prepare()

SECONDS = 120
"""For one type at most."""


def selected() -> None:
    from benchmarks.small_models import ARCHITECTURES, config_of
    from grpo.learner.loading import prove_config

    for name in ARCHITECTURES:
        proof = prove_config(name, config_of(name))
        way = "in trees" if proof.in_trees else "one completion a row"
        print(f"| {name} | {way} | {proof.difference:.0e} | {proof.reason} |", flush=True)


def every(*types: str) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    counts: Counter[str] = Counter()
    signal.signal(signal.SIGALRM, _too_long)
    for model_type in types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        signal.alarm(SECONDS)
        way, detail = outcome(model_type)
        signal.alarm(0)
        counts[way] += 1
        print(f"| {model_type} | {way} | {detail} |", flush=True)
    print(dict(counts))


def outcome(model_type: str) -> tuple[str, str]:
    from transformers import AutoConfig

    from grpo.config import UserError
    from grpo.learner.loading import prove_config

    try:
        proof = prove_config(model_type, AutoConfig.for_model(model_type))
    except TooLong:
        return "not asked", f"{SECONDS} s were not enough"
    except UserError as error:
        kind = "no small copy" if "cannot be checked on a small copy" in str(error) else "not exact"
        return kind, str(error)
    except Exception as error:  # a config that cannot be made without settings of its own
        return "not asked", f"{type(error).__name__}: {str(error)[:200]}"
    return ("in trees" if proof.in_trees else "one completion a row"), f"{proof.difference:.0e}"


class TooLong(BaseException):
    """This is raised when a model takes too long. It is no Exception, because an Exception of the model's own code
    counts as an outcome."""


def _too_long(number: int, frame: object) -> None:
    raise TooLong


if __name__ == "__main__":
    every(*sys.argv[2:]) if sys.argv[1:2] == ["all"] else selected()
