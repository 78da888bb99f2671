"""The learner trains a Hugging Face model by DeepSpeed ZeRO on packed rows.

loading      a model's directory → a policy, or one line that refuses it
proof        packed rows against the model's own eager forward pass, on a small_copy of it
policy       model → log-probabilities of targets, never the whole logits
attention    attention over trees: prompts shared by their completions; windows, sinks, soft-caps
sequence_parallel   several ranks compute one row together
engine       DeepSpeed's configuration and start
learner      one optimizer step; old and reference log-probabilities
offloading   states that leave the device while a sampler works there
scoring      log-probabilities of groups, evenly over ranks
reference    the policy that a KL term measures from
weights      weights gathered bucket by bucket, LoRA merged
collective   sums over ranks
flops        the arithmetic that a model asks for
checkpoint   atomic checkpoints of a run
checksums    whether a folder's files are as they were written
plain_data   what torch saved, read without running it
resharding   a checkpoint of other ranks or another precision
export       a Hugging Face directory
"""

import sys


def _import_deepspeed() -> None:
    """Imports DeepSpeed before anybody else does. Its autotuner, which is not used here, imports MLflow wherever
    that is installed: four seconds of every start."""
    hidden = "mlflow" not in sys.modules
    if hidden:
        sys.modules["mlflow"] = None
    import deepspeed  # noqa: F401

    if hidden:
        del sys.modules["mlflow"]


_import_deepspeed()
