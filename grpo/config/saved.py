"""A saved configuration, from config.json of a run or state.json of a checkpoint, becomes dataclasses again.

A resumed run is compared with its saved configuration: what has changed, and what must not change. A run that starts
from another one finds the model that an earlier run, a checkpoint or an adapter holds.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo.config import plain_yaml
from grpo.config.complaints import one_line
from grpo.config.engines import LoraConfig, ModelConfig
from grpo.config.errors import UserError, first_line, require
from grpo.config.folder import CHECKPOINTS, METRICS_FILE, MODEL_FOLDER, STATE_FILE, checkpoints_in, refuse_several
from grpo.config.hydra import config_directory
from grpo.config.plain_json import parse_json, read_object
from grpo.config.rewording import reworded
from grpo.config.run import TrainConfig

# These are peft's names for the files of an adapter's folder.
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# An adapter with any of these settings is more than W + B·A·alpha/r on linear layers, which is all that is trained.
UNTRAINED = (
    *("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "target_parameters", "lora_bias"),
    *("layers_to_transform", "exclude_modules", "layer_replication", "trainable_token_indices", "fan_in_fan_out"),
    *("alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config"),
)
# With any other of peft's ways to begin (PiSSA, OLoRA, LoftQ, …) the adapter belongs to a base with changed weights.
BASE_UNCHANGED = (None, True, False, "gaussian", "orthogonal", "eva")


def from_dict(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainConfig:
    """Returns the configuration from which `asdict` made these values, changed by `key=value` overrides.

    An override may also name a file of configs/, such as `normalization=dr_grpo`. Keys that no longer exist are
    ignored. A `${…}` within a value stays plain text. Raises UserError for an override that does not fit.
    """

    def build(template: Any, mapping: Mapping[str, Any]) -> Any:
        arguments = {}
        for field in fields(template):
            if field.name in mapping:
                default, value = getattr(template, field.name), mapping[field.name]
                nested = is_dataclass(default) and isinstance(value, Mapping)
                arguments[field.name] = build(default, value) if nested else value
        return type(template)(**arguments)

    try:
        saved_config = OmegaConf.create(_literal(asdict(build(TrainConfig(), values))))
        # The schema makes dataclasses of list items too, such as a reward's parts.
        return OmegaConf.to_object(OmegaConf.merge(_schema(), saved_config, *map(settings_of, reworded(overrides))))
    except OmegaConfBaseException as error:
        raise UserError(one_line(error)) from error


@cache
def _schema() -> DictConfig:
    """Returns the types of all keys. Merging copies it, in a sixth of the time that it takes to build."""
    return OmegaConf.structured(TrainConfig)


def settings_of(word: str) -> DictConfig:
    """Returns what one `key=value` word changes. A word without a dot may choose a file of a group, as in Hydra."""
    word = word.lstrip("+")
    group, _, choice = word.partition("=")
    folder = config_directory() / group
    if "." in group or not folder.is_dir():
        return plain_yaml.from_words([word])
    path = folder / f"{choice}.yaml"
    if not path.is_file():
        choices = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        raise UserError(f"{group} has no {choice!r}; choose one of {choices}")
    file_config = plain_yaml.load(path)
    is_global = path.read_text(encoding="utf-8").startswith("# @package _global_")
    return file_config if is_global else OmegaConf.create({group: file_config})


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Reads the `state.json` of a checkpoint. Raises UserError when it cannot be read."""
    return read_object(checkpoint / STATE_FILE)


def read_step(checkpoint: Path) -> int:
    """Reads after how many optimizer steps a checkpoint was saved, which a copy of it need not have in its name. Raises
    UserError when it cannot be read."""
    progress = read_state(checkpoint).get("progress")
    step = progress.get("step") if isinstance(progress, dict) else None
    require(type(step) is int, f"{checkpoint / STATE_FILE} is damaged: it does not say at which step it was saved")
    return step


def read_config(checkpoint: Path) -> TrainConfig:
    """Reads from a checkpoint the configuration that it was trained with. Raises UserError when there is none."""
    config = read_state(checkpoint).get("config")
    if not isinstance(config, dict):
        raise UserError(f"{checkpoint / STATE_FILE} is damaged: it holds no configuration")
    try:
        return from_dict(config)
    except UserError as error:
        raise UserError(f"{checkpoint / STATE_FILE} is damaged: in its configuration {error}") from error


def read_score(checkpoint: Path) -> float | None:
    """Reads the held-out pass rate of a checkpoint, or None if it was not evaluated. Raises UserError as `read_state`
    does."""
    score = read_state(checkpoint).get("score")
    is_number = isinstance(score, int | float) and math.isfinite(score)
    require(score is None or is_number, f"{checkpoint / STATE_FILE} is damaged: its score is {str(score)[:80]!r}")
    return score


def _literal(value: Any) -> Any:
    """Returns plain data with every `${` escaped, so that OmegaConf keeps it as text.

    Before a `${`, OmegaConf reads every two backslashes as one, and an odd backslash makes the `${` plain text.
    """
    if isinstance(value, Mapping):
        return {name: _literal(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def check_resumed(old: TrainConfig, new: TrainConfig, step: int) -> None:
    """Raises UserError where a run that was configured as `old`, and has taken `step` steps, cannot go on as `new`."""
    if step > new.num_steps:
        raise UserError(
            f"num_steps={new.num_steps} is less than the {step} steps that the run in {new.output_dir} has taken: "
            "raise it, or choose another output_dir"
        )
    check_stages(old.learner.zero_stage, new.learner.zero_stage)
    require(
        # The weights of folders and of the hub's models are compared later, since a copy may lie elsewhere.
        new.model.source in (old.model.source, "huggingface"),
        f"model.source={new.model.source} is another model than that of the run in {new.output_dir}: continue with "
        f"model.source={old.model.source}" + (f" model.path={old.model.path}" if old.model.path else ""),
    )
    adapters = [old.model.lora, new.model.lora]
    # The rank is compared first, because without adapters the other fields mean nothing.
    for field in sorted(fields(adapters[0]), key=lambda field: field.name != "rank"):
        before, after = (getattr(adapter, field.name) for adapter in adapters)
        if before != after and any(adapter.rank for adapter in adapters):
            name = f"model.lora.{field.name}"
            raise UserError(
                f"{name}={after} does not go on from a checkpoint of {name}={before}, which trained other weights: "
                f"continue with {name}={before}, or begin anew from a model that this run has exported"
            )


def check_stages(before: int, after: int) -> None:
    """Raises UserError where a learner at ZeRO stage `after` cannot read shards that were saved at stage `before`."""
    if (before == 3) != (after == 3):
        raise UserError(
            f"learner.zero_stage={after} cannot read a checkpoint of learner.zero_stage={before}, which stores weights "
            f"differently: continue with learner.zero_stage={before} (1 and 2 can be exchanged)"
        )


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
    require(
        place.parent.name != CHECKPOINTS, f"{place} has lost {STATE_FILE}: restore it from a copy, or give another one"
    )
    refuse_several(place)
    for newest in checkpoints_in(place)[-1:]:
        raise UserError(f"{place} holds checkpoints: give one of them, such as the newest, {newest}")
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
    require(
        not model.start or model.path in ("", earlier_model.path),
        f"model.start={checkpoint} is a checkpoint of {earlier_model.path or earlier_model.source}, so model.path="
        f"{model.path} has no effect: leave out one of the two",
    )
    remedy = f"`grpo export {checkpoint} DIRECTORY` makes one model of it, then give model.path=DIRECTORY"
    lora = _agreed(model.lora, earlier_model.lora, checkpoint, remedy)
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
    # A rank-stabilized adapter is scaled by alpha / √rank.
    stabilized = settings["r"] ** 0.5 if settings.get("use_rslora") else 1.0
    earlier_lora = LoraConfig(rank=settings["r"], alpha=stabilized * settings["lora_alpha"], target_modules=names)
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
    require(
        not str(name).startswith(("/", ".", "~")) or Path(name).expanduser().is_dir(),
        f"{folder / ADAPTER_CONFIG} names the base model {name}, which is not here: set model.path to where it is, and "
        f"model.start={folder}",
    )
    return str(name)


def _agreed(asked_lora: LoraConfig, earlier_lora: LoraConfig, place: Path, remedy: str) -> LoraConfig:
    """Returns `earlier_lora`, the adapters of `place`. Raises UserError where `model.lora` configures others."""
    what_it_has = (
        f"adapters of rank {earlier_lora.rank}, alpha {earlier_lora.alpha:g} on {earlier_lora.target_modules}"
        if earlier_lora.rank
        else "no adapters"
    )
    require(
        asked_lora in (LoraConfig(), earlier_lora),
        f"model.lora asks for rank {asked_lora.rank}, alpha {asked_lora.alpha:g} on {asked_lora.target_modules}, but "
        f"{place} has {what_it_has}: leave out model.lora to go on with that; for other adapters, {remedy}",
    )
    return earlier_lora


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = parse_json(file.read_text(encoding="utf-8"))
        kind = settings["peft_type"]
        require(kind == "LORA", f"{file.parent} is an adapter of the kind {kind}; only LORA is trained")
        if isinstance(settings["r"], int) and isinstance(settings["lora_alpha"], int | float):
            return settings
        raise ValueError("r and lora_alpha are no numbers")
    except KeyError as error:
        raise UserError(f"{file} is damaged: it has no {error.args[0]}: restore it from a copy") from error
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{file} is damaged ({first_line(error)}): restore it from a copy") from error


def require_known(config: Any, place: str = "config") -> None:
    """Raises `UserError` for a value that was set under a name that no key has, and for one in place of a section."""
    names = {field.name for field in fields(config)}
    sections = {name for name, value in vars(type(config)()).items() if is_dataclass(value)}
    for name, value in vars(config).items():
        require(name in names, f"{place}.{name} is no key: correct the name (`grpo config WORD` finds keys)")
        require(
            name not in sections or is_dataclass(value),
            f"{place}.{name}={f'{value!r}':.60} takes the place of a whole section: set its keys, or give the word "
            f"'{name}=NAME' to Trainer",
        )
        if is_dataclass(value):
            require_known(value, f"{place}.{name}")
