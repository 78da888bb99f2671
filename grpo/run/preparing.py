"""This module prepares a run: it reads and checks all that the run needs, before any engine is started.

A dry run ends here, and shows its price, a prompt and example rewards. Lengths of prompts and of whole sequences that
the configuration leaves open are fitted to the data, and number formats to the device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import torch

from grpo.config import TaskConfig, TrainConfig
from grpo.config.errors import require
from grpo.config.hydra import compose_suite
from grpo.config.memory_estimate import at_its_largest, least_sleep
from grpo.config.placement import uses_running_servers
from grpo.host import ranks
from grpo.host.alive import working
from grpo.host.repeatable import make_repeatable
from grpo.host.terminal import Terminal, say
from grpo.insight.pages.trial import trial_episodes, trial_table
from grpo.learner.loading import longest_length, most_positions, proven_layout
from grpo.models.files import ModelFiles
from grpo.rollout.engine_arguments import RELEASES_CACHE, vllm_since
from grpo.run import preflight
from grpo.run.model_folder import model_files
from grpo.run.parts import load_task, tried_episodes
from grpo.run.scripted_episodes import ScriptedEpisodes
from grpo.run.tables import gpu_gib, model_shape, print_price, print_tables
from grpo.tasks.curriculum import check_rates
from grpo.tasks.early_checks import oddities
from grpo.tasks.problem_selection import question_hash, split_sets
from grpo.tasks.task import LoadedTask, loaded_tasks
from grpo.tasks.trial import trial, with_one_worker, wrong_in
from grpo.types import MachineConstants

BLOCK = 32
"""A fitted `model.max_length` is a multiple of this, the smallest block of vLLM's cache, where the model allows it."""


class Prepared(NamedTuple):
    """A prepared run has everything that can be known before its engines start.

    config    the configuration, with model, precision and lengths filled in
    files     the model's files
    task      the problems that the run trains on
    suite     the sets of `evaluation.suite`
    openings  how the first episode of each set with episodes opens
    """

    config: TrainConfig
    files: ModelFiles
    task: LoadedTask
    suite: Sequence[TaskConfig]
    openings: Mapping[str, str]


def prepared(config: TrainConfig) -> Prepared:
    """Resolves the model, reads the problems, checks which packed layout computes the model exactly, and prints the
    tables. Raises UserError for anything that the run could not do, beyond what `grpo.run.early_checks` has found."""
    preflight.check_own_functions(config)
    preflight.check_repeatable(config)
    if not config.dry_run:
        ranks.device(config.device)  # raises at once if a GPU is missing
        if config.deterministic:
            make_repeatable(ranks.on_gpu(config.device))
        preflight.check_vllm(config)
    config = with_precision(config)
    preflight.check_deepspeed(config)
    asked = [config.task, *compose_suite(config)]
    config, files, (own_task, *suite) = model_and_problems(config, asked, needs_weights=not config.dry_run)
    _refuse_trained_on(own_task, suite)
    for of_set in own_task.config.all_sets.values() if ranks.rank() == 0 else ():
        for odd in oddities(of_set):
            say(f"grpo: {odd}")
    check_rates(chain.from_iterable(own_task.problems.values()), config.task.curriculum)
    config = replace(config, task=own_task.config)
    with working("trying the episodes"):
        problems = {name: asked for task in (*suite, own_task) for name, asked in task.problems.items()}
        openings = tried_episodes(config, files, problems)
    with working("proving that the model is computed as it computes itself"):
        layout = proven_layout(files, config.learner.layout)
    num_problems, prompts = sum(map(len, own_task.problems.values())), config.dynamics.prompts_per_step
    if prompts > num_problems and ranks.rank() == 0:
        say(
            f"grpo: dynamics.prompts_per_step={prompts} is more than the {num_problems} problems, held-out ones "
            "included, so each step asks some of them several times"
        )
    config = with_sleep(config, files)
    print_tables(replace(config, learner=replace(config.learner, layout=layout)), files)
    return Prepared(config, files, own_task, [task.config for task in suite], openings)


def model_and_problems(
    config: TrainConfig, tasks: Sequence[TaskConfig], learns: bool = True, needs_weights: bool = True
) -> tuple[TrainConfig, ModelFiles, list[LoadedTask]]:
    """Finds the model's files, and reads the problems of `tasks`, to which `fit_lengths` fits lengths left open."""
    with working("looking for the model and preparing it"):
        files = model_files(config, learns, needs_weights=needs_weights)
        preflight.check_spread(config, files)
        preflight.check_adapters(config, files)
        preflight.check_cpu_heads(config, files)
        tokenizer = files.tokenizer
    with working("reading the problems"):
        loaded = loaded_tasks(tasks, config.evaluation.suite, tokenizer, room_for_prompts(config, files))
        preflight.check_vocabulary(files, loaded)
        fitted, fitted_tasks = fit_lengths(config, loaded, files)
    return fitted, files, fitted_tasks


def _refuse_trained_on(own: LoadedTask, suite: Sequence[LoadedTask]) -> None:
    """Raises UserError for a set of `evaluation.suite` most of whose questions are trained on. Tells of fewer."""
    trained = {
        question_hash(problem.question)
        for trained_on, _ in split_sets(own.config, own.problems).values()
        for problem in trained_on
        if sum(message["role"] != "system" for message in problem.messages) < 2
    }
    for task in suite:
        asked = [question_hash(problem.question) for problem in chain.from_iterable(task.problems.values())]
        count = sum(question in trained for question in asked)
        known = f"{count} of the {len(asked)} problems of {task.config.name} in evaluation.suite are trained on"
        elsewhere = "take them out of training with task.data.selection.evaluation_sets=[FILE]"
        require(
            2 * count <= len(asked),
            f"{known}, so its pass rate would show what the model has memorized, and choose the best checkpoint: take "
            "it out of evaluation.suite, since the run's own held-out problems are evaluated anyway "
            f"(evaluation.num_problems), or {elsewhere}",
        )
        if count and ranks.rank() == 0:
            say(f"grpo: {known}: {elsewhere}")


def dry_run(ready: Prepared, machine: MachineConstants | None) -> int:
    """Prints the price, the first prompt, and the rewards of made-up answers to the first problem of each set. Returns
    the exit code.

    `machine` holds measured speeds for the price in hours. The task is loaded as in a run, so that errors in data,
    template and reward show.
    """
    config, first = ready.config, ranks.rank() == 0
    if first:
        print_price(config, ready.files, machine, [*chain.from_iterable(ready.task.problems.values())])
    loaded = replace(ready.task, config=with_one_worker(config.task))
    with load_task(config, ready.files.tokenizer, loaded=loaded) as task:
        [prompt] = task.next_prompts(1)
    with ScriptedEpisodes(config.task) as play:
        scored = trial(config.task, config.rollout.sampling.max_tokens, 1, ready.task.problems, play)
    if first:
        console = Terminal()
        text = ready.files.tokenizer.decode(prompt.token_ids)
        console.print(f"The first prompt has {len(prompt.token_ids)} tokens:\n{text}\n", soft_wrap=True)
        for name, opening in ready.openings.items():
            of_set = f" of {name}" if name else ""
            console.print(f"An episode{of_set} opens so:\n{opening}\n", soft_wrap=True)
        console.print(trial_table(scored))
        for text in trial_episodes(scored):
            console.print(text, soft_wrap=True)
        if line := wrong_in(config.task, scored):
            console.print(line, soft_wrap=True)
    return 0


def room_for_prompts(config: TrainConfig, files: ModelFiles) -> int:
    """Returns how many tokens a prompt may have so that a completion fits into the model behind it."""
    return (config.model.max_length or longest_length(files)) - _longest_answer(config) - _observed(config)


def _longest_answer(config: TrainConfig) -> int:
    return max(config.rollout.sampling.max_tokens, config.evaluation.max_tokens or 0)


def _observed(config: TrainConfig) -> int:
    """Returns the room that tools and environments of episodes get besides prompt and completion, where
    `model.max_length` leaves it open."""
    if config.model.max_length:
        return 0
    sets = chain.from_iterable(task.all_sets.values() for task in (config.task, *compose_suite(config)))
    return max((of_set.limits.observed_tokens for of_set in sets if of_set.episode), default=0)


def fit_lengths(
    config: TrainConfig, tasks: Sequence[LoadedTask], files: ModelFiles
) -> tuple[TrainConfig, list[LoadedTask]]:
    """Replaces a `model.max_length` of 0, and a `prompt.max_tokens` of 0 in each of `tasks`, by what the data need.

    A set's prompt limit becomes the length of its longest prompt, or less if a completion would not fit into the model
    then. The model's length becomes that of the longest prompt plus a completion, rounded up to a multiple of `BLOCK`
    where the model allows it. `config.task` is not changed. Raises `UserError` when prompts and completions cannot fit.
    """
    answer, configured, room = _longest_answer(config), config.model.max_length, room_for_prompts(config, files)
    longer = "rollout.sampling" if answer == config.rollout.sampling.max_tokens else "evaluation"
    asked = f"{longer}.max_tokens={answer}"
    if observed := _observed(config):
        asked += f" and task.limits.observed_tokens={observed}"
    answer += observed
    most = room + answer
    require(
        configured <= (reach := most_positions(files)),
        f"model.max_length={configured} is more than the {reach} positions of the model in {files.path}: lower it, or "
        "set it to 0, which takes what the data need",
    )

    def fitted(of_set: TaskConfig, measured: int) -> TaskConfig:
        longest = of_set.prompt.max_tokens or min(max(1, measured), room)
        return replace(of_set, prompt=replace(of_set.prompt, max_tokens=int(longest)))

    def fitted_task(task: LoadedTask) -> LoadedTask:
        if not task.config.sets:
            return replace(task, config=fitted(task.config, task.longest.get("", 0)))
        sets = {name: fitted(of_set, task.longest.get(name, 0)) for name, of_set in task.config.sets.items()}
        longest = max(of_set.prompt.max_tokens for of_set in sets.values())
        prompt = replace(task.config.prompt, max_tokens=longest)
        return replace(task, config=replace(task.config, sets=sets, prompt=prompt))

    fitting = [*map(fitted_task, tasks)]
    require(
        room > 0,
        f"no room is left for a prompt beside {asked}, since the model has {most} positions: lower "
        f"{'one of the two' if observed else 'it'}",
    )
    longest = max(task.config.prompt.max_tokens for task in fitting)
    require(
        longest <= room,
        f"task.prompt.max_tokens={longest} plus {asked} is more than the {most} positions of the model: lower one of "
        "them",
    )
    needed = min(most, -(-(longest + answer) // BLOCK) * BLOCK)
    return replace(config, model=replace(config.model, max_length=int(configured or needed))), fitting


def with_precision(config: TrainConfig, samples: bool = True) -> TrainConfig:
    """Replaces "auto" precisions in the config by bfloat16 if this machine computes bfloat16 fast, else by float32.

    An "auto" precision of the model's head becomes float32 on a GPU, else the model's own. Raises UserError for a
    bfloat16 sampler on a GPU that does not compute bfloat16, which vLLM refuses. Running servers, which may be on other
    GPUs, refuse it themselves. `samples` says whether the command samples at all.
    """
    on_gpu = ranks.on_gpu(config.device)
    native = _multiplies_bfloat16(on_gpu)
    samples_here = samples and not uses_running_servers(config.rollout)
    require(
        native or not on_gpu or not samples_here or config.rollout.precision != "bfloat16",
        "rollout.precision=bfloat16 needs a GPU of compute capability 8.0 or newer: set rollout.precision=float32",
    )
    precision = "bfloat16" if native else "float32"
    parts = {
        name: replace(engine, precision=precision)
        for name in ("learner", "rollout")
        if (engine := getattr(config, name)).precision == "auto"
    }
    if config.model.head_precision == "auto":
        parts["model"] = replace(config.model, head_precision="float32" if on_gpu else "model")
    return replace(config, **parts)


def with_sleep(config: TrainConfig, files: ModelFiles) -> TrainConfig:
    """Replaces `rollout.sleep=auto` by what the memory estimate asks of an engine on the learner's GPU."""
    gib = gpu_gib(config)
    if config.rollout.sleep != "auto" or config.rollout.engine != "vllm" or not gib:
        return config
    world_size = ranks.counts(config.hardware, config.dry_run)[0]
    sleep = least_sleep(at_its_largest(config), model_shape(files, config.model), world_size, gib)
    # An earlier vLLM has no way to release the cache alone.
    known = sleep != "cache" or vllm_since(RELEASES_CACHE)
    return replace(config, rollout=replace(config.rollout, sleep=sleep if known else "all"))


def _multiplies_bfloat16(on_gpu: bool) -> bool:
    """Says whether this machine's GPU, or its CPU, has instructions for bfloat16. A GPU that is not here, as in a dry
    run, is taken for a new one."""
    if on_gpu:
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
