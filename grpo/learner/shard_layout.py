"""This module records how a learner's state lies in a checkpoint's shards, and says whether a learner can read it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from grpo.config.compare_saved import check_stages
from grpo.config.errors import UserError, require
from grpo.config.folder import LAYOUT_FILE
from grpo.config.optimizer import ADAMW, Optimizer
from grpo.config.plain_json import read_object
from grpo.types.plain import rebuilt

# DeepSpeed gives these names to shards of an optimizer for bfloat16, and to weights that are not sharded.
OF_BFLOAT16, WHOLE_WEIGHTS = "bf16_", "mp_rank_*_model_states.pt"
# The folder of the shards within a checkpoint's folder.
SHARDS = "learner"


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout says how a learner's state is split into shards. Only a learner of the same layout reads them without
    conversion. `parameters` counts the trained parameters. `optimizer` is the name of its class in torch."""

    ranks: int
    zero_stage: int
    precision: str
    parameters: int
    # Older versions had no other, and did not write it down.
    optimizer: str = ADAMW

    def write(self, directory: str | Path) -> None:
        Path(directory, LAYOUT_FILE).write_text(json.dumps(asdict(self)))


def saved_layout(directory: str | Path, tag: str, own_layout: Layout) -> Layout:
    """Returns the layout of a checkpoint whose shards are in its folder `tag`. Raises UserError where a learner of
    layout `own_layout` cannot read the checkpoint, even after conversion."""
    file, shards = Path(directory, LAYOUT_FILE), Path(directory, tag)
    if not shards.is_dir():
        raise UserError(
            f"{directory} holds no learner checkpoint: give a folder such as runs/x/checkpoints/step-00000050"
        )
    if file.exists():
        try:
            saved = rebuilt(Layout, read_object(file), "the layout")
        except ValueError as error:
            raise UserError(f"{file} is damaged ({error})") from error
    else:
        saved = _layout_by_file_names(shards, own_layout)
    if saved.parameters != own_layout.parameters:
        raise UserError(
            f"{directory} is of a model with {saved.parameters:,} trained parameters, this one has "
            f"{own_layout.parameters:,}: set model.path and model.lora as they were"
        )
    check_stages(saved.zero_stage, own_layout.zero_stage)
    _check_optimizer(directory, saved, own_layout)
    return saved


def _check_optimizer(directory: str | Path, saved: Layout, own_layout: Layout) -> None:
    require(
        saved.optimizer == own_layout.optimizer,
        f"{directory} holds the state of {saved.optimizer}, and this run learns with {own_layout.optimizer}: set "
        f"learner.deepspeed.optimizer.type={saved.optimizer}",
    )
    require(
        saved == own_layout or Optimizer(own_layout.optimizer).converted,
        f"{directory} holds the state of {own_layout.optimizer}, which DeepSpeed does not convert: continue with "
        f"{saved.ranks} ranks, learner.zero_stage={saved.zero_stage} and learner.precision={saved.precision}",
    )


def _layout_by_file_names(shards: Path, own_layout: Layout) -> Layout:
    """Returns the layout of a checkpoint that an older version saved, as far as its files' names show it. The number of
    parameters comes from `own_layout`, and so does stage 1 or 2, since both read each other's shards."""
    names = [path.name for path in shards.glob("*optim_states.pt")]
    if not names:
        raise UserError(
            f"{shards} has no shards of an optimizer, as older versions saved them with learner.zero_stage=0: "
            "continue with the version that saved it"
        )
    precision = "bfloat16" if names[0].startswith(OF_BFLOAT16) else "float32"
    stage = min(own_layout.zero_stage, 2) if any(shards.glob(WHOLE_WEIGHTS)) else 3
    return replace(own_layout, ranks=len(names), zero_stage=stage, precision=precision, optimizer=ADAMW)
