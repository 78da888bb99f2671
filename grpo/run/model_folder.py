"""This module finds a run's model and refuses a folder that would be loaded as another model, before anything long."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PretrainedConfig
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from grpo.config import TrainConfig, UserError
from grpo.config.errors import first_line, require
from grpo.config.plain_json import parse_json
from grpo.config.saved import ADAPTER_WEIGHTS
from grpo.host import ranks
from grpo.host.terminal import say
from grpo.models.files import ModelFiles
from grpo.models.resolve import CONFIG, OWN_CODE, resolve, with_config
from grpo.run.parts import warm_start_examples

WIDENED = ("fp8", "mxfp4")
"""Of models that are quantized in these ways, transformers makes models with plain weights."""

COUNTED = re.compile(r"(layers?|experts)$")
"""Keys of a config.json that end like this count modules that are made one by one."""
OF_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""These keys of a config.json count the layers of the model."""
POSITIVE = ("max_position_embeddings", "hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads")
"""These keys of a config.json are sizes, of which a model of 0 has none."""
MOST_MODULES = 20_000
"""No model has more of them. Doge has 16,384 experts, which are rows of one weight."""

OTHER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForRewardModel")
"""Models whose class is called so have another head than that of a language model."""

SHOWN = 3
"""A message names as many weights, and the number of the others."""

_LAYER = re.compile(r"(?:model\.layers|transformer\.h)\.(\d+)\.")
# transformers says so where a weight's shape differs from the configured one, and where it cannot put weights together.
_MISFITS = ("ignore_mismatched_sizes", "automatic conversion")


def model_files(
    config: TrainConfig, learns: bool = True, samples: bool = True, needs_weights: bool = True
) -> ModelFiles:
    """Returns the files of the run's model, as `models.resolve` finds them, after checking that they make a model.

    `learns` and `samples` say whether a learner and a sampler will load it. Without `needs_weights` its weights may be
    missing. Raises UserError for a config.json that transformers cannot read, for a quantized model that would not be
    trained as it is, and for files that lack weights, which transformers would draw at random.
    """
    path = resolve(config.model, lambda: warm_start_examples(config), needs_weights=needs_weights)
    files = ModelFiles(path, config.model.trust_remote_code)
    name = f"model.path={config.model.path}" if config.model.path else f"model.source={config.model.source}"
    changed = f" with model.config={{{', '.join(config.model.config)}: …}}" if config.model.config else ""
    quantized = _quantized(_settings(files, name + changed))
    _ = files.configured_ends  # transformers would not name a damaged file of them
    by_vllm = samples and config.rollout.engine != "transformers"
    if quantized:
        if by_vllm and not learns:
            # vLLM alone loads it, and computes it as it is.
            return files
        _check_quantized(quantized, name, by_vllm)
        files = ModelFiles(with_config(path, {"quantization_config": {"dequantize": True}}), files.trust)
    if needs_weights:
        check_weights(files, name, by_vllm)
    adapter = Path(config.model.start) / ADAPTER_WEIGHTS
    if config.model.start and adapter.exists():
        try:
            safe_open(adapter, framework="pt").keys()
        except (OSError, SafetensorError) as error:
            raise UserError(f"{adapter} is damaged: copy it again ({first_line(error)})") from error
    return files


def _settings(files: ModelFiles, name: str) -> Mapping[str, Any]:
    """Returns what config.json says. Raises UserError where transformers makes no config of it."""
    try:
        settings = parse_json((files.path / CONFIG).read_text())
        require(isinstance(settings, dict), f"{name} has a damaged {CONFIG}, which is no object: copy it again")
    except (OSError, ValueError) as error:
        raise UserError(f"{name} has a damaged {CONFIG}: copy it again ({first_line(error)})") from error
    _check_layers(settings, name)
    kind, own_code = settings.get("model_type"), "auto_map" in settings
    require(
        bool(kind) or own_code,
        f"{name}: its {CONFIG} has no model_type, which says what kind of model it is: give the directory that "
        "save_pretrained wrote",
    )
    require(
        kind in CONFIG_MAPPING or own_code,
        f"{name} is a model of type {kind}, and the installed transformers {transformers.__version__} knows no "
        f"such models: correct model_type in its {CONFIG}, install a newer transformers, or choose another model",
    )
    try:
        config = files.config
    except Exception as error:  # whatever a config's own code says of such settings
        reason = OWN_CODE if "trust_remote_code" in str(error) else f"correct it ({' '.join(str(error).split())[:200]})"
        raise UserError(f"{name}: transformers cannot read its {CONFIG}: {reason}") from error
    classes = settings.get("architectures")
    named = str(classes[0]) if classes and isinstance(classes, list) else ""
    require(
        not named.endswith(OTHER_HEADS),
        f"{name}: its {CONFIG} says {named}, which scores texts and continues none: give a causal language model",
    )
    if not own_code:
        _check_kind(config, f"{name} is a model of type {kind}")
        _check_scaling(config, name)
    return settings


def _check_layers(settings: Mapping[str, Any], name: str) -> None:
    """Raises UserError for a number of layers or experts, or a size, that no model has. A model of very many modules
    would take hours to be made, even without weights. Positions that are scaled in a way without a name would not be
    scaled at all. Weights are floating-point numbers."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            _check_layers(value, name)
            require(
                "factor" not in value or not key.startswith("rope_") or "rope_type" in value or "type" in value,
                f"{name}: its {CONFIG} has {key} with a factor and without a rope_type, which would be ignored: add it",
            )
        elif key in ("dtype", "torch_dtype") and isinstance(value, str) and value != "auto":
            kind = getattr(torch, value.removeprefix("torch."), None)
            require(
                isinstance(kind, torch.dtype) and kind.is_floating_point,
                f"{name}: its {CONFIG} says {key}={value}, and weights are floating-point numbers: correct it",
            )
        elif value != value:  # NaN
            raise UserError(f"{name}: its {CONFIG} says {key}=NaN, which is no number: correct it")
        elif key == "factor":
            number = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
            require(number, f"{name}: its {CONFIG} says factor={value!r}, which is no number: correct it")
        elif key in POSITIVE and isinstance(value, int):
            require(value > 0, f"{name}: its {CONFIG} says {key}={value}, which no model has: correct it")
        elif COUNTED.search(key) and isinstance(value, int):
            require(
                value <= MOST_MODULES and (value > 0 or key not in OF_LAYERS),
                f"{name}: its {CONFIG} says {key}={value:,}, which no model has: correct it",
            )


def _check_scaling(config: PretrainedConfig, name: str) -> None:
    """Raises UserError for a way of scaling positions that transformers does not know."""
    tables = getattr(config.get_text_config(), "rope_parameters", None) or {}
    for table in (tables, *tables.values()):
        way = table.get("rope_type", "default") if isinstance(table, Mapping) else "default"
        require(
            way == "default" or way in ROPE_INIT_FUNCTIONS,
            f"{name}: its {CONFIG} scales positions by rope_type={way}, which transformers does not know: choose one "
            f"of {', '.join(sorted(ROPE_INIT_FUNCTIONS))}",
        )


def _check_kind(config: PretrainedConfig, it_is: str) -> None:
    """Raises UserError for a model that does not continue texts."""
    require(
        type(config) in MODEL_FOR_CAUSAL_LM_MAPPING,
        f"{it_is}, of which transformers makes no language model that continues a text: choose one that it does",
    )
    require(
        not getattr(config, "is_encoder_decoder", False),
        f"{it_is}, whose encoder reads what its decoder then answers, and only models that continue a text are trained "
        "here: choose one of these",
    )


def _quantized(settings: Mapping[str, Any]) -> str:
    """Returns the name of the method by which a model's weights are quantized, or ""."""
    found = settings.get("quantization_config") or (settings.get("text_config") or {}).get("quantization_config")
    return str(found.get("quant_method", "bitsandbytes")) if found else ""


def _check_quantized(method: str, name: str, by_vllm: bool) -> None:
    require(
        method in WIDENED,
        f"{name} is quantized ({method}), and only plain weights are trained here: give the model that was quantized, "
        "and vLLM alone (`grpo eval` with rollout=vllm) measures this one",
    )
    require(
        not by_vllm,
        f"{name} is quantized ({method}), and vLLM would keep it so, while the learner trains and sends plain weights: "
        "give the model in bfloat16, or use rollout.engine=transformers",
    )


def check_weights(files: ModelFiles, name: str, by_vllm: bool = False) -> None:
    """Raises UserError where the files lack weights of the model, or have them in other shapes, and where vLLM will
    read them, which takes no further layers. Tells of weights that the model does not have. Reads only the files'
    headers."""
    try:
        # On this device weights have no values. transformers itself decides which names belong together.
        _, info = AutoModelForCausalLM.from_pretrained(
            files.path, device_map="meta", output_loading_info=True, trust_remote_code=files.trust
        )
    except Exception as error:  # whatever a model's own code raises
        if any(words in str(error) for words in _MISFITS):
            # transformers reports a missing expert in this way, too, where all experts of a layer are one weight.
            _require_all(_absent(files), name)
            raise UserError(
                f"{name}: its weights have other shapes than its {CONFIG} says: correct model.config, or give a model "
                "whose files belong together"
            ) from error
        raise UserError(f"{name}: transformers makes no language model of it: {first_line(error)}") from error
    strange = info["unexpected_keys"]
    _require_all(info["missing_keys"], name, strange)
    # Some models have further layers that predict several tokens at once. They are not trained.
    count = files.text.num_hidden_layers + (getattr(files.text, "num_nextn_predict_layers", 0) or 0)
    beyond = {int(found[1]) for weight in strange if (found := _LAYER.match(weight)) and int(found[1]) >= count}
    require(
        not (beyond and by_vllm),
        f"{name}: its files have weights of layer {min(beyond, default=0)}, and its configuration says {count} layers, "
        "counted from 0, which vLLM refuses: correct one of the two, or use rollout=transformers",
    )
    whole = sorted(_whole_numbers(files).difference(strange))
    require(
        not whole,
        f"{name}: {len(whole)} of its weights are whole numbers ({_listed(whole)}), which a quantization without a "
        f"quantization_config in {CONFIG} leaves: give the model that was quantized",
    )
    if strange and ranks.rank() == 0:
        say(
            f"grpo: {name}: its files have {len(strange)} weights that the model of its {CONFIG} does not have, and "
            f"they are not used: {_listed(strange)}"
        )


def _require_all(missing: Collection[str], name: str, strange: Collection[str] = ()) -> None:
    others = f", and have {len(strange)} that it does not have: {_listed(strange)}" if strange else ""
    require(
        not missing,
        f"{name}: its files lack {len(missing)} of the model's weights, which would be random: {_listed(missing)}"
        f"{others}; copy the files again, or correct its {CONFIG}",
    )


def _absent(files: ModelFiles) -> set[str]:
    """Returns the names that files of such a model have and these have not."""
    model = files.without_values()
    present: set[str] = set()
    for file in files.path.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            present.update(weights.keys())
    named = revert_weight_conversion(model, model.state_dict()).keys() - model.all_tied_weights_keys.keys()
    return named - present


def _whole_numbers(files: ModelFiles) -> set[str]:
    """Returns the names of weights whose numbers are integers. Reads only the files' headers."""
    found: set[str] = set()
    for file in files.path.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            names = weights.keys()
            types = {name: weights.get_slice(name).get_dtype() for name in names if name.endswith(".weight")}
            found.update(name for name, kind in types.items() if kind.startswith(("I", "U")))
    return found


def _listed(names: Collection[str]) -> str:
    others = len(names) - SHOWN
    return ", ".join(sorted(names)[:SHOWN]) + (f" and {others} more" if others > 0 else "")
