"""The learner: a Hugging Face model trained by DeepSpeed ZeRO, fed with packed rows.

attention    attention over trees: prompts shared by their completions
policy       model → log-probabilities of targets, never the whole logits
engine       DeepSpeed's configuration and start
learner      one optimizer step; evaluation of old and reference log-probabilities
reference    the policy that a KL term measures from
weights      weights gathered bucket by bucket, LoRA merged
collective   sums over ranks
checkpoint   atomic checkpoints of a run
checksums    whether a folder's files are as they were written
plain_data   what torch saved, read without running it
resharding   a checkpoint of other ranks or another precision
export       a Hugging Face directory
"""

import sys


def _import_deepspeed() -> None:
    """Before anybody else does. Its autotuner, which is not used here, imports MLflow wherever that is installed: four
    seconds of every start."""
    hidden = "mlflow" not in sys.modules
    if hidden:
        sys.modules["mlflow"] = None
    import deepspeed  # noqa: F401

    if hidden:
        del sys.modules["mlflow"]


_import_deepspeed()
