"""The learner trains a Hugging Face model by DeepSpeed ZeRO on packed rows.

From a folder to a policy:
loading             a model's directory → a policy, or one line that refuses it; weights that a run starts from
proof, small_copy   packed rows compared with the model's own eager forward pass, on a small copy of it
policy              model → log-probabilities of targets, never the whole logits
fused_head          compiled functions for the logits on a GPU, where they compute the same
fused_layers        compiled functions for parts of layers there

One optimizer step:
engine              DeepSpeed's configuration and start, and its check of settings that are passed on to it
learner             one optimizer step; old and reference log-probabilities
step_products       what each step gained, by its product with the gradient that comes after it
attention, varlen   attention over trees; all trees of a row in one call of torch's flash kernel
norms               norms by torch's fused kernel, where it is bit by bit the model's own norm
sequence_parallel   several ranks compute one row together
group_logprobs      log-probabilities of groups, evenly over ranks; tokens that are chosen among all of a step
reference           the policy that a KL term measures the distance to
collective          sums over ranks
offloading          states that leave the device while a sampler works there
flops               the floating-point operations that a model needs

Files that are written and read again:
weights, export     weights gathered bucket by bucket; a Hugging Face directory
rounding            adapters merged into coarser weights without bias
resharding          a checkpoint's shards: written, described, read by other ranks and in another precision
"""

import sys


def _import_deepspeed() -> None:
    """Imports DeepSpeed before any other module does, with MLflow hidden. DeepSpeed's autotuner, which is not used
    here, would import MLflow where it is installed: four seconds of every start."""
    hidden = "mlflow" not in sys.modules
    if hidden:
        sys.modules["mlflow"] = None
    try:
        import deepspeed  # noqa: F401
    finally:
        if hidden:
            del sys.modules["mlflow"]


_import_deepspeed()
