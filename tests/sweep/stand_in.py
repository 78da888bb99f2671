"""This program stands in for `python -m grpo.cli` where only the sweep around it is tested. It writes down that it ran,
and fails or waits as the variant says. Its held-out score is best at a learning rate of 1e-3."""

import json
import math
import sys
import time
from pathlib import Path

words = dict(word.partition("=")[::2] for word in sys.argv[2:])
folder = Path(words["output_dir"])
with (folder / "ran.txt").open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\n")
wish = folder.parent.parent / f"{folder.name}.wish"
if wish.exists():
    if wish.read_text() == "fail":
        print("grpo: the disk is full")
        sys.exit(2)
    if wish.read_text() == "crash":
        raise ValueError("no such port")
    time.sleep(60)
distance = math.log10(float(words.get("learner.learning_rate", "1e-3"))) + 3
with (folder / "evaluations.jsonl").open("w") as file:
    file.write(json.dumps({"step": 1, "pass@1": {"value": 1 / (1 + distance**2)}}) + "\n")
