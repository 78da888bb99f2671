"""This module writes model cards: what a model was trained from, on which problems, how, and with what result."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from grpo.config import TrainConfig
from grpo.config.folder import CODE_FILE, EVALUATIONS_FILE, MANIFEST_FILE, METRICS_FILE
from grpo.config.optimizer import with_learning_rate
from grpo.config.plain_json import read_object
from grpo.evaluation.held_out import is_unjudged, points_gained
from grpo.insight.pages.glossary import duration
from grpo.insight.pages.summary import comparable
from grpo.telemetry.json_lines import read_metrics
from grpo.types import metrics as m

PIPE = r"\|"
"""This is how a vertical bar is written within a cell of a Markdown table."""
HELD_OUT = "held-out problems"
MANIFEST = (
    f"`{MANIFEST_FILE}` beside this card has the SHA-256 of the problems, of the base's weights and of the files that "
    "the model was trained with, and of all that the run had left when it ended. `grpo audit RUN` compares them."
)
SMOLLM2, SMOLLM2_LICENSE = "HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"
"""The model of model.source=smollm2 has this name on the hub, and this license."""
FORMATS = ("file", "trl", "verl")
"""Tasks of these names read any file in one format, so that the file says more than the task's name."""
LONGEST_EXAMPLE = 1000
"""A problem is shown as an example if it has at most this many characters."""

USES = {
    "transformers": "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
    'folder = "."\nmodel = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")',
    "peft": "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer\n\n"
    'folder = "."\nmodel = AutoPeftModelForCausalLM.from_pretrained(folder, dtype="auto")',
}
"""This is the code that loads an exported folder, by library. peft loads the adapter's base too."""


def card_of(run: Path, config: TrainConfig, step: int, adapter: bool = False) -> str:
    """Returns the card of the model, or of the adapter alone, that `run` had after `step` optimizer steps."""
    code = run / CODE_FILE
    versions = read_object(code) if code.exists() else {}
    evaluations = read_metrics(run / EVALUATIONS_FILE) if (run / EVALUATIONS_FILE).exists() else []
    library = "peft" if adapter else "transformers"
    rounds = read_metrics(run / METRICS_FILE) if (run / METRICS_FILE).exists() else []
    spent = [row for row in rounds if row["step"] <= step]
    return card(config, step, evaluations, versions, library, (run / MANIFEST_FILE).exists(), spent)


def card(
    config: TrainConfig,
    step: int,
    evaluations: Sequence[Mapping[str, Any]],
    code: Mapping[str, Any],
    library: str = "transformers",
    has_manifest: bool = False,
    rounds: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Returns the card as Markdown, with the header that the Hugging Face hub reads.

    `evaluations` are the rows of evaluations.jsonl, `code` the content of code.json. `library` is the one that loads
    the folder. `has_manifest` says whether the run's manifest lies beside the card. `rounds` are the rows of
    metrics.jsonl, which tell what training has cost.
    """
    so_far, left_out = comparable([row for row in evaluations if row["step"] <= step])
    parts = [_header(config, library), _summary(config, step, so_far, library), _use(config, library, _example(so_far))]
    facts = chain(_facts(config, step), _spent(rounds, so_far))
    parts += [_results(so_far), *left_out, _table("Training", facts), _again(config, code)]
    if has_manifest:
        parts.append(MANIFEST)
    return "\n\n".join(parts) + "\n"


def _base(config: TrainConfig) -> str:
    """Returns the name of the model that training began with. For a local folder that is the folder's last part."""
    path = config.model.path
    return (Path(path).name if Path(path).is_dir() else path) or config.model.source


def _hub_name(config: TrainConfig) -> str:
    """Returns the name on the hub of the model that training began with, or "" where it is not known."""
    source, path = config.model.source, Path(config.model.path)
    if source != "huggingface" or not path.is_dir():
        return {"huggingface": config.model.path, "smollm2": SMOLLM2}.get(source, "")
    cached = next((part for part in path.resolve().parts if part.startswith("models--")), "")
    return "/".join(cached.split("--")[1:])


def _license(config: TrainConfig) -> str:
    """Returns the license that the base's own card names, or "" where it is not known."""
    own_card = Path(config.model.path) / "README.md"
    if config.model.source != "huggingface" or not own_card.is_file():
        return SMOLLM2_LICENSE if config.model.source == "smollm2" else ""
    named = re.search(r"\A---\n(?:.*\n)*?license: *([\w.-]+)", own_card.read_text(errors="replace"))
    return named[1] if named else ""


def _problems(config: TrainConfig) -> str:
    """Returns the names of the sets of problems: those of their tasks, or of the files that a general task has read."""
    sets = config.task.all_sets.values()
    return ", ".join(Path(of_set.data.path).name if of_set.name in FORMATS else of_set.name for of_set in sets)


def _example(evaluations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the row of a held-out problem that the run has evaluated, or a made-up one."""
    asked = (row for evaluation in evaluations for row in evaluation.get("per_problem", ()))
    fitting = (row for row in asked if 0 < len(row.get("question", "")) <= LONGEST_EXAMPLE)
    return next(fitting, {"question": "How much is 3 + 4?"})


def _header(config: TrainConfig, library: str) -> str:
    lines = ["---", f"library_name: {library}", "pipeline_tag: text-generation", "tags: [grpo, reinforcement-learning]"]
    lines += [f"base_model: {_hub_name(config)}"] if _hub_name(config) else []
    lines += [f"license: {_license(config)}"] if _license(config) else []
    sets = [of_set.data.path for of_set in config.task.all_sets.values() if of_set.data.source == "hub"]
    lines += [f"datasets: [{', '.join(sets)}]"] if sets else []
    return "\n".join([*lines, "---"])


def _summary(config: TrainConfig, step: int, evaluations: Sequence[Mapping[str, Any]], library: str) -> str:
    """Returns the title, and a paragraph on what the model is and how its results have changed."""
    base, task, rank = _base(config), _problems(config), config.model.lora.rank
    intro = f"{base} was trained with GRPO for {step} optimizer steps on the problems of {task}."
    if library == "peft":
        intro += f" This folder holds the LoRA adapter of rank {rank}, without its base."
    elif rank:
        intro += (
            f" A LoRA adapter of rank {rank} was trained, which is merged into these weights, rounded without bias."
        )
    terms = f"The base's license, {_license(config)}, applies." if _license(config) else "The base's license applies."
    of_base = f"Its base is {_hub_name(config)}. {terms}" if _hub_name(config) not in ("", base) else terms
    return f"# {base}, trained with GRPO on {task}\n\n{intro} {_outcome(evaluations, step)} {of_base}"


def _outcome(evaluations: Sequence[Mapping[str, Any]], step: int) -> str:
    """Returns sentences on how pass@1, or the mean reward, has changed from the first evaluation to the last."""
    if not evaluations:
        return "It was not evaluated on held-out problems while it was trained."
    first, last = evaluations[0], evaluations[-1]
    by_reward = any(map(is_unjudged, evaluations))
    before, after = (f"{row['mean_reward']:.3g}" if by_reward else _rate(row) for row in (first, last))
    start = "before training" if first["step"] == 0 else f"after step {first['step']}"
    sentence = (
        f"Its {'mean reward' if by_reward else 'pass@1'} on {_graded(last)} held-out problems was {before} {start}"
    )
    sentence += f" and {after} after step {last['step']}." if first["step"] < last["step"] else "."
    return sentence + ("" if last["step"] == step else f" It was not evaluated at step {step}.")


def _use(config: TrainConfig, library: str, example: Mapping[str, Any]) -> str:
    """Returns the section with code that loads the folder and asks the model a question as in training."""
    # With several sets, the first one's problems are asked.
    prompt, sampling = next(iter(config.task.all_sets.values())).prompt, config.rollout.sampling
    question = json.dumps(prompt.template.replace("{question}", example["question"]), ensure_ascii=False)
    lines = [USES[library], "tokenizer = AutoTokenizer.from_pretrained(folder)", f"question = {question}"]
    if prompt.chat:
        options = "".join(f", {name}={value!r}" for name, value in prompt.chat_template_kwargs.items())
        opening = [
            message for message in example.get("opening", ()) if prompt.system is None or message["role"] != "system"
        ]
        opening = [{"role": "system", "content": prompt.system}, *opening] if prompt.system else opening
        before = "".join(f"{json.dumps(message, ensure_ascii=False)}, " for message in opening)
        lines += [f'messages = [{before}{{"role": "user", "content": question}}]']
        lines += [
            f"text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False{options})"
        ]
    else:
        lines += ["text = question"]
    lines += [f'inputs = tokenizer(text, return_tensors="pt"{", add_special_tokens=False" if prompt.chat else ""})']
    settings = f"do_sample=True, temperature={sampling.temperature:g}, top_k=0, max_new_tokens={sampling.max_tokens}"
    lines += [f"output = model.generate(**inputs, {settings})"]
    lines += ['print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))']
    notes = [f"In training {len(prompt.examples)} solved examples came before the question."] if prompt.examples else []
    if prompt.chat and prompt.system == "":
        notes += ["In training a system text that the chat template writes by itself was left out."]
    # An argument of a LaTeX command follows the command or another argument.
    if columns := [name for name in re.findall(r"(?<![\\\w}])\{\w+\}", prompt.template) if name != "{question}"]:
        notes += [f"In training the text of a problem's column replaced {' and '.join(columns)}."]
    code = "\n".join(lines)
    introduction = (
        "This asks the model as it was asked in training. `folder` is where these files are, or their name on the hub."
    )
    return "\n\n".join(["## Use", introduction, f"```python\n{code}\n```", *notes])


def _results(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Returns the first and the last evaluation as a table, or a line that says that there is none."""
    if not evaluations:
        return "## Results\n\nThere are none."
    by_reward, cells = any(map(is_unjudged, evaluations)), []
    ends = {row["step"]: row for row in (evaluations[0], evaluations[-1])}.values()
    for name in (HELD_OUT, *evaluations[-1].get("suite", {})):
        for row in ends:
            if result := row if name == HELD_OUT else row.get("suite", {}).get(name):
                rate = result["pass@1"]
                measured = f"pass@1 | {_rate(result)} | [{rate['low']:.1%}, {rate['high']:.1%}]"
                if by_reward and name == HELD_OUT:
                    measured = f"mean reward | {result['mean_reward']:.3g} | –"
                cells.append(f"| {name} | {row['step']} | {measured} | {_graded(result)} |")
    lines = ["## Results", "", "| problems | after step | measured | value | 95 % interval | number |"]
    lines += ["|---|---|---|---|---|---|", *cells]
    last = evaluations[-1]
    if "temperature" in last:
        drawn = f"{last['samples_per_problem']} of each problem, drawn at temperature {last['temperature']:g}"
        rates = "" if by_reward and "suite" not in last else "pass@1 is the share of right completions. "
        lines += ["", f"{rates}Completions were {drawn}. Held-out problems were not trained on."]
    return "\n".join(lines)


def _rate(result: Mapping[str, Any]) -> str:
    return f"{result['pass@1']['value']:.1%}"


def _graded(result: Mapping[str, Any]) -> int:
    """Returns the number of problems that an evaluation's pass rates come from."""
    return result["problems"] - result.get("ungraded", 0)


def _facts(config: TrainConfig, step: int) -> Iterator[tuple[str, str]]:
    """Yields the settings of the training run that a reader asks for, as pairs (name, value)."""
    model = config.model
    dynamics, objective, sampling = config.dynamics, config.objective, config.rollout.sampling
    normalization, learner = config.normalization, with_learning_rate(config).learner
    revision = f" at {model.revision}" if model.revision else ""
    yield "trained from", f"{model.path or model.source}{revision}"
    if model.start:
        yield "beginning with the weights of", model.start
    for of_set in config.task.all_sets.values():
        yield "problems", f"{of_set.name} ({of_set.data.path or of_set.data.source})"
        yield "reward", ", ".join(f"{part.name} × {part.weight:g}" for part in of_set.reward.parts)
        yield "prompt", f"`{json.dumps(of_set.prompt.template)}`"
    yield "optimizer steps", f"{step}"
    yield "completions a step", f"{dynamics.prompts_per_step} prompts × {dynamics.group_size}"
    yield "optimizer steps between refreshes", f"{dynamics.refresh_interval}"
    grpo = (normalization.name, normalization.exponent, normalization.mean_exponent) == ("dial", 1.0, 0.0)
    yield (
        "normalization",
        f"{'GRPO: ' * grpo}{normalization.name}, exponents {normalization.exponent:g} of σ and "
        f"{normalization.mean_exponent:g} of the mean",
    )
    yield "objective", f"{objective.name}, {objective.aggregation.level}, KL coefficient {objective.kl.coefficient:g}"
    yield "learning rate", f"{learner.learning_rate:g}, {learner.schedule}, {learner.warmup_steps} steps of warm-up"
    yield "precision", f"{learner.precision} (learner), {config.rollout.precision} (sampler)"
    yield "sampling", f"temperature {sampling.temperature:g}, at most {sampling.max_tokens} tokens"
    lora = model.lora
    yield "LoRA", f"rank {lora.rank}, alpha {lora.alpha:g}, on {lora.target_modules}" if lora.rank else "none"
    yield "seed", f"{config.seed}"


def _spent(rounds: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yields the time of the rounds, and their energy where the learner's machines count it."""
    seconds = sum(row.get(m.ROUND_SECONDS, 0.0) for row in rounds)
    if seconds:
        yield "time of all rounds", duration(seconds)
    counted = [row[m.ROUND_ENERGY] for row in rounds if m.ROUND_ENERGY in row]
    if kwh := sum(counted) / 3.6e6:
        of = "all" if len(counted) == len(rounds) else f"{len(counted)} of {len(rounds)}"
        points = points_gained(evaluations) if of == "all" else 0.0
        a_point = f", {kwh / points:.2g} kWh for each point of pass@1 gained" if points else ""
        yield f"energy of {of} rounds", f"{kwh:.3g} kWh by the counters of GPUs and processors{a_point}"


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    cells = [f"| {name} | {value.replace('|', PIPE)} |" for name, value in rows]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *cells])


def _again(config: TrainConfig, code: Mapping[str, Any]) -> str:
    """Returns the section with the versions and the whole configuration with which to train the model again."""
    versions = ", ".join(f"{name} {version}" for name, version in code.get("versions", {}).items())
    commit = f", commit {code['commit']}" if code.get("commit") else ""
    trained = f"It was trained with {versions}{commit}.\n\n" if versions else ""
    repeated_config = replace(config, checkpoint=replace(config.checkpoint, resume=False))
    settings = json.dumps({"defaults": ["schema", "_self_"], **asdict(repeated_config)}, indent=1)
    return (
        f"## How to train it again\n\n{trained}Save the whole configuration as `again.yaml`, then run "
        f"`grpo train again.yaml output_dir=runs/again`:\n\n```json\n{settings}\n```"
    )
