"""This module builds the parts that training and evaluation share, from a run's configuration."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from grpo.config import TrainConfig, UserError
from grpo.config.hydra import compose_suite
from grpo.config.parts import SamplerSettings
from grpo.config.placement import beside_learner
from grpo.config.saved import is_checkpoint, read_config
from grpo.episodes.forms import FUNCTION, PROGRAM
from grpo.episodes.gateway import Gateway
from grpo.episodes.messages import system_of
from grpo.episodes.sampler import EpisodeSampler, Stage
from grpo.episodes.template import ChatTemplate
from grpo.host import ranks
from grpo.host.alive import working
from grpo.host.imports import importing
from grpo.host.network import without_address
from grpo.host.terminal import say
from grpo.interfaces import Collective, Sampler
from grpo.models.files import ModelFiles
from grpo.rollout.checked_sampler import CheckedSampler
from grpo.run.scripted_episodes import processes_of
from grpo.tasks.curriculum import Grouping
from grpo.tasks.problem_selection import split
from grpo.tasks.prompt_encoding import PromptEncoder, filled
from grpo.tasks.task import LoadedTask, VerifiableTask, build_task, loaded_task
from grpo.tasks.usable import usable_problems, without_warnings
from grpo.types import Problem

ANY_EXAMPLE = ("1 + 1 =", "2")
"""A tiny base whose weights are replaced learns this example, which takes a second."""


def load_task(
    config: TrainConfig,
    tokenizer: PreTrainedTokenizerBase,
    rank: int = 0,
    world_size: int = 1,
    loaded: LoadedTask | None = None,
) -> VerifiableTask:
    """Builds the configured task, with this rank's share of the prompts. `loaded` holds its problems if they have been
    read already."""
    return build_task(
        loaded or loaded_task(config.task, tokenizer),
        tokenizer,
        seed=config.seed,
        max_tokens=config.rollout.sampling.max_tokens,
        grouping=Grouping(config.dynamics.group_size, *config.normalization.dials),
        rank=rank,
        world_size=world_size,
    )


def warm_start_examples(config: TrainConfig) -> list[tuple[str, str]]:
    """Returns pairs (prompt, answer) of the training problems, from which a tiny model learns its warm start, or
    `ANY_EXAMPLE` where no problem has an answer.

    Pairs longer than `model.max_length`, at one token per character, are left out, since such problems are never asked.
    Adapters of a checkpoint need the base of their own run, and so its problems. A checkpoint without adapters replaces
    all weights, so that any base serves. Raises UserError if no pair is left.
    """
    if is_checkpoint(config.model.start):
        return warm_start_examples(read_config(Path(config.model.start))) if config.model.lora.rank else [ANY_EXAMPLE]
    asked, longest = [], config.model.max_length or math.inf
    for name, of_set in config.task.all_sets.items():
        with without_warnings():
            train, _ = split(usable_problems(of_set, name), of_set.data.held_out_fraction)
        asked += [(filled(of_set.prompt.template, problem), problem) for problem in train if problem.answer]
    examples = [(prompt, problem.answer) for prompt, problem in asked] or [ANY_EXAMPLE]
    fitting = [example for example in examples if sum(map(len, example)) <= longest]
    if not fitting:
        prompt, problem = min(asked, key=lambda pair: len(pair[0]) + len(pair[1].answer))
        question, answer = len(problem.question), len(problem.answer)
        raise UserError(
            f"every problem is longer than model.max_length={longest}, since the tiny model reads each character as a "
            f"token: the shortest has a question of {question}, an answer of {answer} and {len(prompt) - question} of "
            "task.prompt.template; for such problems leave out experiment=tiny and model=tiny, or raise "
            "model.max_length"
        )
    return fitting


def build_sampler(config: TrainConfig, files: ModelFiles, device: torch.device, collective: Collective) -> Sampler:
    """Builds the configured sampler, wrapped in a `CheckedSampler`, or in an `EpisodeSampler` if the task has episodes.
    Imports only the configured engine's package."""
    stages = build_stages(config, files)
    urls = config.rollout.servers.urls if config.rollout.engine == "vllm_server" else []
    doing = f"starting the sampler ({config.rollout.engine})"
    if urls:
        minutes = config.rollout.servers.start_seconds / 60
        doing = f"waiting up to {minutes:g} min for the vLLM servers that grpo serve starts at {', '.join(urls)}"
        # A machine that has just begun may get its name later, so this ends no run.
        unknown = [url for url in urls if without_address(url)]
        doing += f" (this machine finds no address of {', '.join(unknown)})" if unknown else ""
    with working(doing):
        engine = build_engine(SamplerSettings.of(config), files, device, collective)
        if not any(stages.values()):
            return CheckedSampler(engine, files.text.vocab_size)
        rollout = config.rollout
        return EpisodeSampler(
            engine, files.text.vocab_size, stages, rollout.sampling, config.seed, rollout.group_deadline_seconds
        )


def build_stages(config: TrainConfig, files: ModelFiles) -> dict[str, Stage | None]:
    """Starts the processes of episodes, those of `evaluation.suite` included. Returns where they run, by sources of
    problems, and None for problems of single turns.

    Raises UserError if the code of an episode cannot be imported.
    """
    stages: dict[str, Stage | None] = {}
    for name, of_set in chain.from_iterable(task.all_sets.items() for task in (config.task, *compose_suite(config))):
        stages[name] = None
        if of_set.episode:
            encode = PromptEncoder(files.tokenizer, of_set.prompt)
            prompt = of_set.prompt
            own_file = prompt.chat_template if Path(prompt.chat_template).is_file() else ""
            template = ChatTemplate(encode.tokenizer, encode.render, files.stop_token_ids, prompt.tool_parser, own_file)
            processes = processes_of(of_set)
            gateway = Gateway(of_set.gateway) if processes.kind in (FUNCTION, PROGRAM) else None
            limits, longest = of_set.limits, config.model.max_length
            stages[name] = Stage(processes, template, encode.messages, of_set.column_names, limits, longest, gateway)
    return stages


def tried_episodes(config: TrainConfig, files: ModelFiles, problems: Mapping[str, Sequence[Problem]]) -> dict[str, str]:
    """Tries the episodes of each set before anything heavy starts: imports their code, and proves the chat template.
    Returns how the conversation of the first problem of each such set opens, tools included, as the model reads it.

    Raises UserError as `build_stages` does, and for a template that does not grow by appending.
    """
    stages, openings = build_stages(config, files), {}
    try:
        for name, stage in stages.items():
            # Sets of `evaluation.suite` stand in place of the task in `grpo eval`.
            if not stage or name not in problems:
                continue
            tools = stage.processes.tools
            if tools and stage.limits.turns == 1 and not ranks.rank():
                say(
                    "grpo: task.limits.turns=1 ends an episode with its first call, whose answer nobody reads: raise it"
                )
            system = system_of(stage.messages(problems[name][0]))
            if (kept := stage.template.prove(tools, system)) and not ranks.rank():
                say(f"grpo: a conversation keeps the {kept} of earlier turns, where the chat template would not")
            openings[name] = files.tokenizer.decode(stage.template.opening(stage.messages(problems[name][0]), tools))
    finally:
        for stage in filter(None, stages.values()):
            stage.processes.close()
    return openings


def build_engine(settings: SamplerSettings, files: ModelFiles, device: torch.device, collective: Collective) -> Sampler:
    """Builds the engine that `rollout.engine` names."""
    if settings.rollout.engine == "vllm_server":
        from grpo.rollout.server_sampler import ServerSampler

        return ServerSampler(settings, files, device, collective)
    if beside_learner(settings.rollout, device.type == "cuda"):
        from grpo.rollout.engine_beside import EngineBeside

        return EngineBeside(settings, files, device, collective)
    if settings.rollout.engine == "transformers":
        from grpo.rollout.transformers_sampler import TransformersSampler
        from grpo.run.padding import exact_way

        return TransformersSampler(settings, files, device, exact_way(files))
    try:
        with importing():
            from grpo.rollout.vllm_sampler import VllmSampler
    except ImportError as error:
        raise UserError(f"rollout.engine=vllm: {error}; install vLLM or use rollout.engine=transformers") from error
    return VllmSampler(settings, files)
