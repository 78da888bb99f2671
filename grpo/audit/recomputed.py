"""These checks compute steps again by the specification: log-probabilities, advantages, token weights and the loss.

They need all completions of a round, with their tokens (tracking.completions=all), and the policy at its start: the
run's first model, or a checkpoint.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpo.audit.lines import UNCHECKED, Line, compared
from grpo.audit.reference import Settings, logprobs, step_loss
from grpo.audit.starts import Start, start_of
from grpo.config import TrainConfig
from grpo.config.folder import CHECKPOINTS, MANIFEST_FILE, MODEL_FOLDER, step_name
from grpo.run.assembly import part_weights
from grpo.run.exporting import CARD_FILE, export_checkpoint
from grpo.run.model_folder import model_files
from grpo.telemetry.json_lines import Row
from grpo.types import GroupWithLogprobs, ScoredGroup
from grpo.types import metrics as m

FLOAT32, BFLOAT16 = 0.02, 0.5
"""Log-probabilities of one policy by two programs differ by at most this many nats a token on average, see
`weight_sync.max_mismatch`."""

Groups = Sequence[tuple[Row, ScoredGroup]]


def check_steps(
    output: Path, run: Sequence[Start], metrics: Sequence[Row], groups: Groups, every: bool
) -> Iterator[Line]:
    """Computes rounds again whose completions and starting policy are there: the first and the last, or `every` one.
    `run` are the starts of the run."""
    by_step: dict[int, list[tuple[Row, ScoredGroup]]] = {}
    for row, scored in groups:
        if row.get("token_ids") is not None:
            by_step.setdefault(row["step"], []).append((row, scored))
    starts = zip([0, *(row["step"] for row in metrics)], metrics, strict=False)
    rounds = [(start, row) for start, row in starts if row["step"] in by_step and _policy(output, run[0].config, start)]
    if not rounds:
        needs = "all completions of a round (tracking.completions=all), and the policy at its start"
        yield Line("steps", UNCHECKED, f"this needs {needs}, as the first model or a checkpoint")
        return
    for start, row in rounds if every else [*{id(rounds[place]): rounds[place] for place in (0, -1)}.values()]:
        config = start_of(run, row["step"]).config
        with tempfile.TemporaryDirectory() as folder:
            model = _plain(output, config, start, Path(folder))
            yield from _check_round(config, model, start, row, by_step[row["step"]])


def _policy(output: Path, config: TrainConfig, step: int) -> bool:
    checkpoint = output / CHECKPOINTS / step_name(step)
    return checkpoint.exists() or (step == 0 and not config.model.start)


def _plain(output: Path, config: TrainConfig, step: int, folder: Path) -> Any:
    """Returns the policy of a step as transformers computes it, in float64."""
    checkpoint, path = output / CHECKPOINTS / step_name(step), folder / "model"
    if checkpoint.exists():
        export_checkpoint(checkpoint, path, trust_remote_code=config.model.trust_remote_code)
    else:
        path = model_files(config, samples=False).path
    return _loaded(path, config)


def _loaded(path: Path, config: TrainConfig) -> Any:
    trust = config.model.trust_remote_code
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float64, attn_implementation="eager", trust_remote_code=trust
    )


def _check_round(config: TrainConfig, model: Any, start: int, row: Row, groups: Groups) -> Iterator[Line]:
    name = f"step {row['step']}"
    temperature = config.rollout.sampling.temperature
    fresh = [scored for first, scored in groups if all(version == start for version, _ in first["versions"])]
    if len(fresh) < len(groups):
        yield Line(name, UNCHECKED, "its completions are of several policies")
        return
    with torch.no_grad():
        under = {id(scored): _under(model, scored, temperature) for scored in fresh}
    yield from _check_logprobs(config, name, fresh, under)
    if reason := _no_loss(config, groups):
        yield Line(f"{name}: loss", UNCHECKED, reason)
        return
    reference: dict[int, tuple[torch.Tensor, ...]] = {}
    if config.objective.kl.coefficient:
        first_model = _loaded(model_files(config, samples=False).path, config)
        with torch.no_grad():
            reference = {id(scored): _under(first_model, scored, temperature) for scored in fresh}
    learned = [GroupWithLogprobs(scored, under[id(scored)], reference.get(id(scored), ()))
               for first, scored in groups if first["learned_in"] == 0]  # fmt: skip
    objective = config.objective
    if m.ENTROPY_COEFFICIENT in row:
        objective = replace(objective, entropy_coefficient=row[m.ENTROPY_COEFFICIENT])
    settings = Settings(config.normalization, objective, temperature, part_weights(config.task))
    with torch.no_grad():
        loss = step_loss(model, learned, settings).item()
    logged, bound = row.get(m.LOSS, math.nan), 1e-3 if _is_float32(config) else 0.1
    off = abs(loss - logged)
    # NaN is within no bound.
    wrong = [] if off <= bound else [f"{m.LOSS} is {logged:.6g} in the record, and {loss:.6g} by the specification"]
    fact = f"advantages, token weights and loss of {len(learned)} groups: {loss:.6g}, within {off:.0e} of the record"
    yield from compared(f"{name}: loss", wrong, fact)


def _under(model: Any, scored: ScoredGroup, temperature: float) -> tuple[torch.Tensor, ...]:
    prompt = scored.group.prompt.token_ids
    return tuple(logprobs(model, prompt, completion, temperature) for completion in scored.group.completions)


def _check_logprobs(
    config: TrainConfig, name: str, groups: Sequence[ScoredGroup], under: Mapping[int, tuple[torch.Tensor, ...]]
) -> Iterator[Line]:
    """Compares the sampler's recorded log-probabilities with those of the policy at the round's start, for each
    completion."""
    bound = config.weight_sync.max_mismatch or (FLOAT32 if _is_float32(config) else BFLOAT16)
    wrong, gaps = [], []
    for scored in groups:
        for sample, (completion, now) in enumerate(zip(scored.group.completions, under[id(scored)], strict=True)):
            gap = (torch.tensor(completion.sampler_logprobs, dtype=torch.float64) - now).abs()
            gaps.append(gap)
            if len(gap) and not gap.mean() <= bound:
                wrong.append(
                    f"sample {sample} of {scored.group.prompt.prompt_id} is not what the policy wrote: its "
                    f"log-probabilities are {gap.mean():.2g} nats a token off"
                )
    mean = torch.cat(gaps).mean().item() if gaps else 0.0
    yield from compared(f"{name}: log-probabilities", wrong, f"{len(gaps)} completions, {mean:.1e} nats a token off")


def _no_loss(config: TrainConfig, groups: Groups) -> str:
    """Returns why the loss of a round cannot be computed again, or ""."""
    objective = config.objective
    names = config.normalization.name, objective.name, objective.aggregation.level, objective.kl.estimator
    if own := [name for name in names if ":" in name]:
        return f"{own[0]} is a function of the user's own, which the specification does not have"
    if config.dynamics.passes > 1 or any(row["learned_in"] > 0 for row, _ in groups):
        return "the round has several steps, and the weights between them were not kept"
    if objective.kl.coefficient and (objective.kl.refresh_every or config.model.start):
        return "the reference policy was not kept"
    return ""


def _is_float32(config: TrainConfig) -> bool:
    return config.learner.precision == config.rollout.precision == "float32"


def check_model(output: Path, config: TrainConfig, step: int) -> Iterator[Line]:
    """Compares the model that the run left with that of the checkpoint of its last step."""
    model, checkpoint = output / MODEL_FOLDER, output / CHECKPOINTS / step_name(step)
    if not (model.exists() and checkpoint.exists()):
        return
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / "model"
        export_checkpoint(checkpoint, again, trust_remote_code=config.model.trust_remote_code)
        then, now = (_weights_in(place) for place in (again, model))
        others, files = (_others_in(place) for place in (again, model))
    wrong = [f"{MODEL_FOLDER}/ has other weights than {checkpoint.name}: {name}" for name in sorted({*then, *now})
             if name not in then or name not in now or not _alike(then[name], now[name])]  # fmt: skip
    changed = sorted(name for name in others.keys() | files.keys() if others.get(name) != files.get(name))
    wrong += [f"{MODEL_FOLDER}/{name} is not what {checkpoint.name} gives" for name in changed]
    yield from compared("model", wrong, f"{MODEL_FOLDER}/ has the weights and the tokenizer of {checkpoint.name}")


def _others_in(folder: Path) -> dict[str, bytes]:
    """Returns the files of a model without weights, card and manifest, by their names."""
    left_out = (CARD_FILE, MANIFEST_FILE)
    files = [file for file in folder.glob("*.*") if file.suffix != ".safetensors" and file.name not in left_out]
    return {file.name: file.read_bytes() for file in files}


def _weights_in(folder: Path) -> dict[str, torch.Tensor]:
    try:
        files = [load_file(file) for file in sorted(folder.glob("*.safetensors"))]
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return {name: tensor for weights in files for name, tensor in weights.items()}


def _alike(then: torch.Tensor, now: torch.Tensor) -> bool:
    """Tells whether weights are equal, but for the rounding of adapters that another device has merged."""
    close = {"rtol": 2 * torch.finfo(then.dtype).eps if then.is_floating_point() else 0.0, "atol": 1e-7}
    return then.shape == now.shape and then.dtype == now.dtype and torch.allclose(then, now, **close)
