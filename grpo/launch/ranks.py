"""`torchrun`, which ends without a traceback where it was asked to.

python -m grpo.launch.ranks ARGUMENTS OF torchrun
"""

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main

if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SignalException as stopped:
        # The ranks have finished their round and saved by now.
        sys.exit(128 + stopped.sigval)
