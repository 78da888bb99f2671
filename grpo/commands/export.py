"""This module implements `grpo export`, which turns a checkpoint into a folder that transformers and vLLM load."""

from collections.abc import Sequence

from grpo.commands.words import one_of, paths_and_settings, truth, typed
from grpo.config import UserError
from grpo.config.errors import require
from grpo.host.alive import working
from grpo.host.disk import size_of
from grpo.models.upload import check_upload, upload
from grpo.run.export_source import to_export

USAGE = """usage: grpo export CHECKPOINT | RUN DIRECTORY [dtype=bfloat16|float16|float32] [adapter=true]
                   [upload=USER/NAME [public=true]] [despite_gates=true] [model.trust_remote_code=true]

Writes the model of a checkpoint with its tokenizer and a model card into DIRECTORY, which transformers and vLLM load.
A run's folder stands for its checkpoint with the best held-out pass rate, or the newest where none was evaluated.
dtype is that of the written weights, by default that of training. adapter=true writes the LoRA adapter alone as it
was trained, in peft's format, instead of merging it into the weights. Merged and float32 weights are rounded to dtype
without bias, so that their products keep small changes, and dtype=float32 rounds nothing. upload=USER/NAME sends
DIRECTORY to the Hugging Face hub too, where a new model is private unless public=true. A model that is beyond a gate
of its run is refused unless despite_gates=true. It needs no GPU. Python code that comes with the model runs only with
model.trust_remote_code=true, also if the checkpoint's own configuration allows it.

  grpo export runs/x models/x  the best checkpoint of a run
  grpo export runs/x/checkpoints/step-00000050 models/x dtype=bfloat16
  grpo export runs/x adapters/x adapter=true upload=me/x"""

TRUST = "model.trust_remote_code"
DTYPES = ("bfloat16", "float16", "float32")


def run(words: Sequence[str]) -> int:
    """Exports the model, and uploads it if asked to. Returns the exit code."""
    places, settings = paths_and_settings(words)
    if len(places) != 2:
        raise UserError("grpo export needs a checkpoint or a run's folder, and a folder to write (grpo export help)")
    kinds = {
        "dtype": one_of(*DTYPES),
        "adapter": truth,
        "upload": str,
        "public": truth,
        "despite_gates": truth,
        TRUST: truth,
    }
    options = typed(settings, **kinds)
    require(
        not (options.get("adapter") and "dtype" in options),
        "adapter=true writes the adapter as it was trained: leave out dtype=",
    )
    name = options.get("upload", "")
    require(bool(name) or "public" not in options, "public= is read with upload=USER/NAME only: give both")
    if "upload" in options:
        check_upload(name)
    (place, directory), adapter = places, options.get("adapter", False)
    to_export(place, directory, adapter, options.get("despite_gates", False))
    with working("writing the model"):
        # This import takes seconds, so wrong words and folders are reported before.
        from grpo.run.exporting import export_checkpoint

        trust = options.get(TRUST, False)
        checkpoint = export_checkpoint(place, directory, options.get("dtype", ""), adapter, trust)
    print(f"{checkpoint} is exported to {directory} ({size_of(directory)})")
    if name:
        print(f"it is uploaded to {upload(directory, name, options.get('public', False))}")
    return 0
