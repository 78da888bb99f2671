"""This program runs measurements in a process of their own, see `grpo.prove.own_process`.

    python -m grpo.prove.worker MEASURE[,MEASURE] SIZE FOLDER FILE [OVERRIDES]

Under torchrun all ranks measure together. The first rank writes the joined report to FILE.
"""

import json
import signal
import sys
from pathlib import Path

from grpo.host import environment

if __name__ == "__main__":
    environment.prepare()

from grpo.config import UserError
from grpo.host import ranks
from grpo.host.tether import end_with_parent
from grpo.prove import computation, learning, lost_server, sampling
from grpo.prove.bench import Bench
from grpo.prove.facts import Report

MEASURES = {
    "step": computation.step,
    "learning": learning.learning,
    "rows": learning.rows,
    "sampler": sampling.sampler,
    "losing": lost_server.losing,
}


def main(measures: str, size: str, folder: str, file: str, *overrides: str) -> None:
    bench = Bench(size, Path(folder), list(overrides))
    reports = [MEASURES[name](bench) for name in measures.split(",")]
    if ranks.rank() == 0:
        Path(file).write_text(json.dumps(Report.joined(reports).plain()))


if __name__ == "__main__":
    # Under torchrun a rank has a session of its own, and its memory is wanted when torchrun is killed.
    end_with_parent(signal.SIGKILL)
    try:
        main(*sys.argv[1:])
    except UserError as error:
        sys.exit(f"grpo: {error}")
