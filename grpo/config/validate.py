"""Validation refuses what cannot work before anything starts; each error is one line that says how to mend it."""

import os
import re
from contextlib import suppress
from dataclasses import fields
from pathlib import Path, PureWindowsPath

from grpo.config.errors import UserError
from grpo.config.errors import require as _require
from grpo.config.folder import CHECKPOINTS, CONFIG_FILE, FOLDERS, checkpoints_in, is_run, resumable, runs_within
from grpo.config.pass_through import check_pass_through, check_training
from grpo.config.placement import require_length
from grpo.config.plain_json import read_object
from grpo.config.ranges import check_sizes, check_values, value_at
from grpo.config.run import TrackingConfig, TrainConfig
from grpo.config.start import START_VARIABLE, only_here
from grpo.config.validate_loss import check_loss, check_pipeline
from grpo.config.validate_task import check_task

NAMES = {
    "output_dir": "a folder, such as output_dir=runs/mine",
    "task.name": "the task, such as task.name=sums",
    "tracking.project": "the project, such as tracking.project=grpo",
}
"""Each of these keys holds a name, which is never empty."""
# W&B's tags have at most this many characters. A machine's name has no protocol, port or user, as these have.
MOST_TAG, NO_MACHINE = 64, r"[^:]*:\d+|.*[@/].*|\s*"
MLFLOW_WORDS = ("mlruns", "databricks")
"""These words are MLflow's own: its usual folder, which need not be there yet, and its service."""


def validate(config: TrainConfig, world_size: int = 1) -> None:
    """Raises UserError for the first thing that keeps this configuration from being trained."""
    validate_evaluation(config)
    check_sizes(config)
    _require(
        world_size > 1 or config.hardware.ranks == 1,
        f"hardware asks for {config.hardware.ranks} learner ranks, and this is a run of one: start it by `grpo launch` "
        "or launch/node.sh with the same words, or leave out hardware",
    )
    check_batch(config, world_size)
    _check_shards(config, world_size)
    check_loss(config)
    check_training(config)
    check_pipeline(config)
    _check_run(config)


def validate_evaluation(config: TrainConfig) -> None:
    """Raises UserError for the first thing that keeps this configuration from being evaluated, or trained."""
    check_values(config)
    for key, what in NAMES.items():
        _require(bool(value_at(config, key).strip()), f"{key} is empty: name {what}")
    _require(
        not re.search(r"^\.|[/\\\x00-\x1f]", config.task.name),
        f"task.name={config.task.name} is no plain name, by which a folder may be called: leave out slashes and a "
        "first dot",
    )
    _check_output(config)
    _check_lengths(config)
    check_pass_through(config)
    check_task(config)
    evaluation = config.evaluation
    _require(
        len({*evaluation.pass_at}) == len(evaluation.pass_at) > 0,
        f"evaluation.pass_at={list(evaluation.pass_at)} must name each k of pass@k once, e.g. [1] or [1,4]",
    )
    _require(
        len({*evaluation.suite}) == len(evaluation.suite),
        f"evaluation.suite={list(evaluation.suite)} names a set twice: name each once",
    )
    _require(
        all(1 <= k <= evaluation.samples_per_problem for k in evaluation.pass_at),
        f"evaluation.pass_at={list(evaluation.pass_at)} must hold numbers between 1 and "
        f"evaluation.samples_per_problem={evaluation.samples_per_problem}: change one of the two",
    )
    sampling = config.rollout.sampling
    top_k_key = "rollout.sampling.top_k" if evaluation.top_k is None else "evaluation.top_k"
    for key, least in (("evaluation.temperature", 0), (top_k_key, 1)):
        _require(
            value_at(config, key) != least or evaluation.samples_per_problem == 1,
            f"{key}={least} gives a problem the same completion {evaluation.samples_per_problem} times: "
            "raise it, or set evaluation.samples_per_problem=1",
        )
    for key in ("rollout.sampling.temperature", "evaluation.temperature"):
        temperature = value_at(config, key)
        _require(
            temperature <= 2 or config.rollout.engine == "transformers",
            f"{key}={temperature} is above 2, which vLLM refuses: lower it, or use rollout.engine=transformers",
        )
    _require(0 < sampling.top_p <= 1, f"rollout.sampling.top_p={sampling.top_p} must lie in (0, 1]; 1 turns it off")
    _require(
        evaluation.top_p is None or 0 < evaluation.top_p <= 1,
        f"evaluation.top_p={evaluation.top_p} must lie in (0, 1]; 1 turns it off",
    )
    _require(evaluation.max_tokens != 0, "evaluation.max_tokens=0 must be above 0; null takes rollout.sampling's")


def _check_output(config: TrainConfig) -> None:
    """Raises UserError for an output_dir that cannot be meant."""
    _require(
        not PureWindowsPath(config.output_dir).drive and "\\" not in config.output_dir,
        f"output_dir={config.output_dir} is a path of Windows, and this machine would make one folder of that name: "
        "name a folder with slashes, such as output_dir=runs/mine",
    )
    _require(
        config.output_dir not in ("None", "null"),
        f"output_dir={config.output_dir} would be a folder of that name: name one, or leave the word out",
    )
    _require(
        "://" not in config.output_dir,
        f"output_dir={config.output_dir} is an address, and a run writes to this machine's disk: name a folder, "
        "such as output_dir=runs/mine, and copy it afterwards",
    )
    _require(
        "$" not in config.output_dir,
        f"output_dir={config.output_dir} holds a $, and no shell has put a variable's value there: put the word in "
        "double quotes, or write the folder, or ${oc.env:NAME}",
    )
    output = Path(os.path.realpath(config.output_dir))
    _require(
        not (output.name in FOLDERS and is_run(output.parent)),
        f"output_dir={config.output_dir} is a folder of a run's: give output_dir={output.parent}, or a new folder",
    )
    _require(
        not _mixes(output, bool(config.checkpoint.resume)),
        f"output_dir={config.output_dir} would mix the run's files with others: name a folder of its own, such as "
        "output_dir=runs/mine",
    )


def _mixes(output: Path, resumes: bool) -> bool:
    """Tells whether a folder holds what surely is no run. It is a home or a folder of a run's, such as its checkpoints.
    Another program's config.json lies there, such as a model's, or runs in folders of their own. Or it is the working
    folder, one around it or one at the top of the disk such as /etc, unless it is empty or a run lies there."""
    here = Path.cwd()
    # A user without a name, as in containers, has no home.
    with suppress(RuntimeError):
        if output == Path.home():
            return True
    if output == Path("/"):
        return True
    if _is_foreign(output / CONFIG_FILE) or (not resumes and not is_run(output) and runs_within(output)):
        return True
    of_all = output in (here, *here.parents) or output.parent == Path("/")
    return of_all and not is_run(output) and any(output.glob("*"))


def _is_foreign(file: Path) -> bool:
    """Tells whether another program has written a config.json. A damaged one may be a run's."""
    try:
        names = read_object(file).keys() if file.exists() else set()
    except UserError:
        return False
    return bool(names) and not names & {field.name for field in fields(TrainConfig)}


def validate_serving(config: TrainConfig) -> None:
    """Raises UserError for the first thing that keeps `grpo serve` from starting servers for this configuration."""
    servers = config.rollout.servers
    _require(servers.port > 0, "grpo serve needs rollout.servers.port: set it, since the learner must know the address")
    _require(
        not servers.urls,
        "grpo serve starts servers, and rollout.servers.urls names running ones for a learner: leave it out",
    )
    _check_source(config)
    require_length(config.model)


def check_batch(config: TrainConfig, world_size: int) -> None:
    """Raises UserError for a batch, fixed or adaptive, that ranks cannot share evenly or that teaches nothing."""
    prompts = config.dynamics.prompts_per_step
    fewer = prompts // world_size * world_size
    _require(
        prompts % world_size == 0,
        f"dynamics.prompts_per_step={prompts} cannot be shared evenly by the {world_size} learner ranks: use "
        + " or ".join(str(even) for even in (fewer, fewer + world_size) if even),
    )
    _require(
        config.dynamics.group_size > 1,
        "dynamics.group_size=1 leaves every advantage zero: use 2 or more completions per prompt",
    )
    budget = config.rollout.budget
    _require(
        not budget.enabled or budget.pilot < config.dynamics.group_size <= budget.largest,
        f"rollout.budget.enabled=true needs rollout.budget.pilot={budget.pilot} < "
        f"dynamics.group_size={config.dynamics.group_size} <= rollout.budget.largest={budget.largest}: change one of "
        "the three",
    )
    _require(
        not (budget.enabled and config.rollout.refill.enabled),
        "rollout.budget.enabled and rollout.refill.enabled are both true, and both deal with silent groups: set one of "
        "them to false",
    )
    _check_adaptive(config)


def _check_adaptive(config: TrainConfig) -> None:
    """Raises UserError for bounds between which `dynamics=adaptive` cannot choose."""
    rules, prompts = config.dynamics.adaptive, config.dynamics.prompts_per_step
    _require(
        2 <= rules.smallest_group <= rules.largest_group,
        f"dynamics.adaptive.smallest_group={rules.smallest_group} must lie between 2 and "
        f"dynamics.adaptive.largest_group={rules.largest_group}: change one of the two",
    )
    _require(
        config.dynamics.name != "adaptive" or rules.smallest_group <= config.largest_group,
        f"dynamics.adaptive.smallest_group={rules.smallest_group} is above rollout.budget.largest="
        f"{config.rollout.budget.largest}, the most completions of one prompt: change one of the two",
    )
    _require(
        rules.fewest_prompts <= prompts and (not rules.most_prompts or prompts <= rules.most_prompts),
        f"dynamics.prompts_per_step={prompts} must lie between dynamics.adaptive.fewest_prompts={rules.fewest_prompts} "
        f"and dynamics.adaptive.most_prompts={rules.most_prompts}; 0 sets no bound apart from it",
    )


def _check_shards(config: TrainConfig, world_size: int) -> None:
    together = config.learner.sequence_parallel
    _require(
        world_size % together == 0,
        f"learner.sequence_parallel={together} does not divide the number of learner ranks, {world_size}: use a "
        "divisor of it, or another number of ranks",
    )
    spread = config.rollout.tensor_parallel
    _require(
        spread == 1 or config.rollout.engine == "vllm",
        f"rollout.tensor_parallel={spread} is for an engine in the learner's process: "
        + (
            "use rollout.servers.tensor_parallel"
            if config.rollout.engine == "vllm_server"
            else "use rollout.engine=vllm, or leave it out"
        ),
    )
    _require(
        world_size % spread == 0,
        f"rollout.tensor_parallel={spread} does not divide the number of learner ranks, {world_size}: use a divisor of "
        "it, or another number of ranks",
    )
    deadline = config.rollout.group_deadline_seconds
    _require(
        not deadline or config.task.episode or config.rollout.engine != "transformers",
        f"rollout.group_deadline_seconds={deadline:g}: transformers writes all completions of a batch together, and "
        "gives up none: use rollout.engine=vllm, or leave it out",
    )
    _require(
        deadline < config.rollout.deadline_seconds,
        f"rollout.group_deadline_seconds={deadline:g} would never give up a group, since rollout.deadline_seconds="
        f"{config.rollout.deadline_seconds:g} ends the run before: make it less",
    )
    _require(
        not deadline or spread == 1,
        f"rollout.group_deadline_seconds={deadline:g}: ranks that share an engine take each step together, so their "
        "clocks may not end groups: set rollout.tensor_parallel=1, or leave it out",
    )
    size = config.learner.hpz_partition_size
    _require(
        size == 0 or config.learner.zero_stage == 3,
        f"learner.hpz_partition_size={size} copies sharded weights, which only ZeRO-3 has: set learner.zero_stage=3, "
        "or learner.hpz_partition_size=0",
    )
    _require(
        size == 0 or (size > 1 and world_size % size == 0),
        f"learner.hpz_partition_size={size} must be above 1 and divide the {world_size} learner ranks: use the number "
        "of ranks on one node",
    )


def _check_lengths(config: TrainConfig) -> None:
    prompt, answer, longest = config.task.prompt.max_tokens, config.rollout.sampling.max_tokens, config.model.max_length
    _require(
        not longest or prompt or answer < longest,
        f"rollout.sampling.max_tokens={answer} leaves no room for a prompt in model.max_length={longest}: lower the "
        "first or raise the second",
    )
    max_tokens = config.evaluation.max_tokens
    _require(
        not longest or max_tokens is None or prompt + max_tokens <= longest - (not prompt),
        f"evaluation.max_tokens={max_tokens} leaves no room for a prompt in model.max_length={longest}: lower the "
        "first or raise the second",
    )
    _require(
        not longest or prompt + answer <= longest,
        f"task.prompt.max_tokens={prompt} plus rollout.sampling.max_tokens={answer} is more than "
        f"model.max_length={longest}: lower one of the two, or raise model.max_length to {prompt + answer}",
    )


def _check_run(config: TrainConfig) -> None:
    _require(
        config.evaluation.num_problems == 0
        or any(of_set.data.held_out_fraction > 0 for of_set in config.task.all_sets.values()),
        f"evaluation.num_problems={config.evaluation.num_problems} needs held-out problems: set "
        "task.data.held_out_fraction above 0, or evaluation.num_problems=0",
    )
    _require(
        config.evaluation.num_problems > 0 or not config.evaluation.suite,
        "evaluation.suite comes besides held-out problems in training: set evaluation.num_problems above 0",
    )
    _check_machines(config)
    _check_source(config)
    _check_mlflow(config.tracking.mlflow)
    _check_wandb(config.tracking)
    checkpoint = config.checkpoint
    _require(
        not checkpoint.keep_every or (checkpoint.every_rounds and checkpoint.keep_every % checkpoint.every_rounds == 0),
        f"checkpoint.keep_every={checkpoint.keep_every} must be a multiple of "
        f"checkpoint.every_rounds={checkpoint.every_rounds}, since only what is saved can be kept",
    )
    saved = bool(checkpoints_in(Path(config.output_dir) / CHECKPOINTS))
    _require(
        checkpoint.resume != "auto" or config.dry_run or not only_here(config.output_dir),
        f"checkpoint.resume=auto would never find a checkpoint, since output_dir={config.output_dir} is named by "
        f"this start or its moment: name output_dir, or set {START_VARIABLE} to a name that stays the same, such as a "
        "job's number",
    )
    _require(
        bool(checkpoint.resume) or not saved,
        f"{config.output_dir} already holds a run: continue it with its words and `checkpoint.resume=true "
        f"output_dir={config.output_dir}`, or choose another output_dir",
    )
    _require(
        not checkpoint.upload or bool(re.match(r"[\w+.:-]*\w://.", checkpoint.upload)),
        f"checkpoint.upload={checkpoint.upload} is no address: give one such as s3://bucket/run or file:///mnt/run",
    )
    if checkpoint.resume is True and not saved and not checkpoint.upload:
        raise UserError(_nothing_to_resume(Path(config.output_dir)))


def _check_machines(config: TrainConfig) -> None:
    """Raises UserError for the first name of a machine that is none, and for too few or too many of them."""
    for host in config.hardware.hosts:
        _require(
            not re.fullmatch(NO_MACHINE, host),
            f"hardware.hosts: {host!r} is no name or address alone: ~/.ssh/config says a host's port and user",
        )
        _require(
            config.hardware.hosts.count(host) == 1,
            f"hardware.hosts names {host} twice, and its GPUs are used once: name each machine once",
        )
    for key in ("rollout.servers.host", "task.gateway"):
        address = value_at(config, key)
        _require(
            not re.fullmatch(NO_MACHINE, address),
            f"{key}={address} is no name or address alone: leave out its protocol, port and user, as in {key}=10.0.0.5",
        )
    hosts, needed = config.hardware.hosts, config.hardware.learner_nodes + config.hardware.server_nodes
    _require(
        len(hosts) in (0, needed) or config.hardware.shell not in ("ssh", "srun"),
        f"hardware.hosts names {len(hosts)} machines, and hardware.learner_nodes={config.hardware.learner_nodes} and "
        f"hardware.server_nodes={config.hardware.server_nodes} need {needed}: change hardware.hosts or these numbers",
    )


def _check_mlflow(uri: str) -> None:
    """Raises UserError for a tracking URI that is one word. MLflow would make a folder of that name."""
    a_word = uri and ":" not in uri and "/" not in uri and uri not in MLFLOW_WORDS
    _require(
        not a_word or Path(uri).is_dir(),
        f"tracking.mlflow={uri} is no address and no folder: give http://HOST:PORT, sqlite:///FILE or file:FOLDER",
    )
    _require(not re.fullmatch(r"[\w.-]+:\d+/?", uri), f"tracking.mlflow={uri} lacks its protocol: give http://{uri}")


def _check_wandb(tracking: TrackingConfig) -> None:
    """Raises UserError for a name that W&B refuses, which it would do only when the run begins."""
    if tracking.wandb == "off":
        return
    _require(
        not {*"/\\#?%:"} & {*tracking.project},
        f"tracking.project={tracking.project}: W&B takes no name with /, \\, #, ?, % or :, and tracking.entity names "
        "the user or team",
    )
    for tag in tracking.tags:
        _require(0 < len(tag) <= MOST_TAG, f"tracking.tags: W&B takes tags of 1 to {MOST_TAG} characters, not {tag!r}")


def _nothing_to_resume(output: Path) -> str:
    """Returns what to tell about a run without a checkpoint that is to be resumed."""
    if output.parent.name == CHECKPOINTS:
        return f"output_dir={output} is a checkpoint: give the run's folder, output_dir={output.parent.parent}"
    near = resumable(output)
    if near is None:
        return (
            f"there is nothing to resume, since {output / CHECKPOINTS} holds no checkpoint: name the run's folder by "
            "output_dir=RUN, or start without checkpoint.resume=true"
        )
    return (
        f"there is nothing to resume in {output}: add output_dir={near}, the newest run nearby that has a checkpoint, "
        "or name another one"
    )


def _check_source(config: TrainConfig) -> None:
    _require(
        not config.model.path or config.model.source == "huggingface" or Path(config.model.path).is_dir(),
        f"model.path={config.model.path} is not read with model.source={config.model.source}: add model=huggingface",
    )
