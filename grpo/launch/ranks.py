"""`torchrun` without tracebacks of its own: its ranks have said what there is to say.

python -m grpo.launch.ranks ARGUMENTS OF torchrun
"""

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SignalException as stopped:
        # The ranks have finished their round and saved by now.
        sys.exit(128 + stopped.sigval)
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        sys.exit(first.exitcode if first.exitcode > 0 else 128 - first.exitcode)
