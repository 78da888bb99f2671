"""This module finds the model that an earlier run, a checkpoint or an adapter holds, for another run to start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo.config.engines import LoraConfig, ModelConfig
from grpo.config.errors import UserError, first_line, require
from grpo.config.folder import CHECKPOINTS, METRICS_FILE, MODEL_FOLDER, STATE_FILE, checkpoints_in
from grpo.config.plain_json import parse_json
from grpo.config.runs_within import refuse_several
from grpo.config.saved import read_config

# These are peft's names for the files of an adapter's folder.
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# An adapter with any of these settings is more than W + B·A·alpha/r on linear layers, which is all that is trained.
UNTRAINED = (
    *("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern", "target_parameters", "lora_bias"),
    *("layers_to_transform", "exclude_modules", "layer_replication", "trainable_token_indices", "fan_in_fan_out"),
    *("alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config"),
)

# With any other of peft's ways to begin (PiSSA, OLoRA, LoftQ, …) the adapter belongs to a base with changed weights.
BASE_UNCHANGED = (None, True, False, "gaussian", "orthogonal", "eva")


def described(model: ModelConfig) -> ModelConfig:
    """Returns the configuration of the model that lies at `model.start`, or else at `model.path`.

    A run's folder becomes the model that the run left. A checkpoint or an adapter becomes `start`, and `path`, `source`
    and `lora` are then those of its base and its adapters. For any other folder, `source` becomes huggingface. Raises
    UserError where the model is missing, and where `model.lora` differs from the adapters found.
    """
    path = model.start or model.path
    place = Path(path).expanduser()
    if not path or not place.is_dir():
        require(not model.start, f"model.start={model.start}: there is no such folder: give a checkpoint or an adapter")
        return model
    if (place / CHECKPOINTS).is_dir() or (place / METRICS_FILE).exists():
        return replace(model, source="huggingface", path=str(_left_by(place)), start="")
    if (place / STATE_FILE).exists():
        return _of_checkpoint(model, place)
    if (place / ADAPTER_CONFIG).exists():
        return _of_adapter(model, place)
    refuse_several(place)
    require(not model.start, f"model.start={model.start} is no checkpoint and no adapter: give it as model.path")
    return replace(model, source="huggingface")


def is_checkpoint(start: str) -> bool:
    """Tells whether `model.start` is a checkpoint, and not an adapter or nothing."""
    return bool(start) and (Path(start) / STATE_FILE).exists()


def _left_by(run: Path) -> Path:
    """Returns the folder of the model that a run left. Raises UserError when it has left none."""
    model_folder = run / MODEL_FOLDER
    if model_folder.is_dir():
        return model_folder
    checkpoints = checkpoints_in(run / CHECKPOINTS)
    advice = f"give its newest checkpoint, {checkpoints[-1]}" if checkpoints else "it has no checkpoint either"
    raise UserError(f"the run {run} has left no {MODEL_FOLDER}/, since it is not finished or exports none: {advice}")


def _of_checkpoint(model: ModelConfig, checkpoint: Path) -> ModelConfig:
    earlier_model = read_config(checkpoint).model
    mend = f"`grpo export {checkpoint} DIRECTORY` makes one model of it, then give model.path=DIRECTORY"
    lora = _agreed(model.lora, earlier_model.lora, checkpoint, mend)
    return replace(
        earlier_model,
        start=str(checkpoint),
        lora=lora,
        config=earlier_model.config | model.config,
        head_precision=earlier_model.head_precision if model.head_precision == "auto" else model.head_precision,
        # A checkpoint may be somebody else's, whose code is run only where this command allows it.
        trust_remote_code=model.trust_remote_code,
        max_length=model.max_length,
    )


def _of_adapter(model: ModelConfig, folder: Path) -> ModelConfig:
    settings = _read(folder / ADAPTER_CONFIG)
    kind = settings.get("peft_type")
    require(kind == "LORA", f"{folder} is an adapter of the kind {kind}; only LORA is trained")
    unusual_settings = [f"{name}={settings[name]}" for name in UNTRAINED if settings.get(name)]
    unusual_settings += [f"bias={settings['bias']}"] if settings.get("bias", "none") != "none" else []
    began = settings.get("init_lora_weights")
    unusual_settings += [f"init_lora_weights={began}"] if began not in BASE_UNCHANGED else []
    merge = "merge it into its base with peft's merge_and_unload, and give the merged model as model.path"
    require(not unusual_settings, f"{folder} has {', '.join(unusual_settings)}, which is not trained here: {merge}")
    require(
        (folder / ADAPTER_WEIGHTS).is_file(),
        f"{folder} has no {ADAPTER_WEIGHTS}: save the adapter as safetensors, with save_pretrained",
    )
    targets = settings.get("target_modules")
    require(
        isinstance(targets, list) or targets == "all-linear",
        f"{folder} names its target_modules by the pattern {targets!r}: list their names in {ADAPTER_CONFIG}",
    )
    names = targets if isinstance(targets, str) else ",".join(sorted(targets))
    earlier_lora = LoraConfig(rank=settings["r"], alpha=float(settings["lora_alpha"]), target_modules=names)
    lora = _agreed(model.lora, earlier_lora, folder, merge)
    # With `model.start` the base may be given, for example a copy in another folder; else the adapter names it.
    has_base = bool(model.start) and bool(model.path)
    base = {"source": "huggingface"} if has_base else {"source": "huggingface", "path": _base(settings, folder)}
    base |= {} if has_base or model.revision else {"revision": settings.get("revision") or ""}
    return replace(model, start=str(folder), lora=lora, **base)


def _base(settings: Mapping[str, Any], folder: Path) -> str:
    name = settings.get("base_model_name_or_path")
    require(
        bool(name), f"{folder / ADAPTER_CONFIG} names no base model: set model.path to it, and model.start={folder}"
    )
    return str(name)


def _agreed(asked_lora: LoraConfig, earlier_lora: LoraConfig, place: Path, mend: str) -> LoraConfig:
    """Returns `earlier_lora`, the adapters of `place`. Raises UserError where `model.lora` configures others."""
    what_it_has = (
        f"adapters of rank {earlier_lora.rank}, alpha {earlier_lora.alpha:g} on {earlier_lora.target_modules}"
        if earlier_lora.rank
        else "no adapters"
    )
    require(
        asked_lora in (LoraConfig(), earlier_lora),
        f"model.lora asks for rank {asked_lora.rank}, alpha {asked_lora.alpha:g} on {asked_lora.target_modules}, but "
        f"{place} has {what_it_has}: leave out model.lora to go on with that; for other adapters, {mend}",
    )
    return earlier_lora


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = parse_json(file.read_text())
        if isinstance(settings["r"], int) and isinstance(settings["lora_alpha"], int | float):
            return settings
        raise ValueError("r and lora_alpha are no numbers")
    except KeyError as error:
        raise UserError(f"{file} is damaged: it has no {error.args[0]}") from error
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{file} is damaged ({first_line(error)})") from error
