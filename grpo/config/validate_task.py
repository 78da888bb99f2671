"""This part of `grpo.config.validate` checks a task: its sets, its data and its reward."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from urllib.parse import urlsplit

from grpo.config.credentials import PLACE
from grpo.config.errors import UserError, require
from grpo.config.ranges import CHOICES, check_values
from grpo.config.run import TrainConfig
from grpo.config.task import (
    EPISODE,
    REMOTE,
    CurriculumConfig,
    LimitsConfig,
    RewardPartConfig,
    RewardServerConfig,
    TaskConfig,
    remote_kind,
)

PATHS = {"file": "file", "hub": "data set on the hub", "reasoning_gym": "generator"}


def check_task(config: TrainConfig) -> None:
    """Raises UserError for the first thing that is wrong with the task, or with one of its sets."""
    task = config.task
    _check_curriculum(task.curriculum)
    if not task.sets:
        require(
            task.weight == 1.0,
            f"task.weight={task.weight:g} is read only where a task is one of several sets: leave it out",
        )
        _check_set(config)
        return
    defaults = TaskConfig()
    for section in ("data", "reward"):
        require(
            getattr(task, section) == getattr(defaults, section),
            f"task.{section} is not read where task.sets has sets of problems: begin with task=mixed, and set "
            f"task.sets.{next(iter(task.sets))}.{section}",
        )
    require(
        task.prompt == defaults.prompt,
        "task.prompt is not read where task.sets has sets of problems: begin with task=mixed, and set "
        f"task.sets.{next(iter(task.sets))}.prompt",
    )
    for name, of_set in task.sets.items():
        with naming_set(name):
            _check_member(replace(config, task=of_set))
    _check_together(config)


def _check_curriculum(curriculum: CurriculumConfig) -> None:
    require(
        curriculum.name != "anneal" or curriculum.hard < curriculum.easy,
        f"task.curriculum.easy={curriculum.easy:g} must be above task.curriculum.hard={curriculum.hard:g}, since both "
        "are pass rates and anneal goes from easy problems to hard ones: exchange them",
    )


@contextmanager
def naming_set(name: str) -> Iterator[None]:
    """Rewrites the keys in errors about a task as those of the set `name`. With "", errors stay as they are.

    >>> with naming_set("words"):
    ...     raise UserError("task.weight=0 must be above 0")
    Traceback (most recent call last):
    grpo.config.errors.UserError: task.sets.words.weight=0 must be above 0
    """
    try:
        yield
    except UserError as error:
        if not name:
            raise
        message, named = str(error), of_named_set(str(error), name)
        raise UserError(named if named != message else f"task.sets.{name}: {message}") from error


def of_named_set(message: str, name: str) -> str:
    """Returns a message about a task with its keys as those of the set `name`. The task itself has the name ""."""
    keys = r"\btask\.(?=(weight|data|prompt|reward|episode|limits)\b)"
    return re.sub(keys, lambda _: f"task.sets.{name}.", message) if name else message


def _check_member(config: TrainConfig) -> None:
    """Checks one of several sets of problems. The caller has put the set in the place of `config.task`."""
    task = config.task
    require(not task.sets, "task.sets: a set has no sets of its own")
    require(task.weight > 0, f"task.weight={task.weight:g} must be above 0")
    require(task.curriculum == TaskConfig().curriculum, "task.curriculum is that of all sets: set it there")
    require(not task.reward.by_source, "task.reward.by_source: a set is one source, so set its reward.parts")
    check_values(config, ("task.data.", "task.prompt.", "task.reward.", "task.limits."))
    _check_set(config)


def _check_together(config: TrainConfig) -> None:
    """Checks that no two sets are one, and that all sets have the same reward parts and weights, where
    normalization.parts=each needs it."""
    for (one, first_set), (other, second_set) in combinations(config.task.sets.items(), 2):
        require(
            replace(first_set, weight=second_set.weight) != second_set,
            f"task.sets.{one} and task.sets.{other} are one set of problems: remove one of them, and set "
            f"task.sets.{one}.weight if it is to be asked more often",
        )
    first, *others = config.task.rewards
    require(
        config.normalization.parts == "sum" or all(reward.weights == first.weights for reward in others),
        "normalization.parts=each normalizes each part of the reward, so all sets need the same parts and weights: "
        "set normalization.parts=sum, or the same reward.parts in every set",
    )


def _at_most_one(part: RewardPartConfig) -> bool:
    """Tells whether a part of a reward is one of grpo's own, which compare answers."""
    return ":" not in part.name and not remote_kind(part.name) and part.name.partition("/")[0] != "episode"


def _check_set(config: TrainConfig) -> None:
    """Checks data and reward of a task that has no sets."""
    data, reward, answer = config.task.data, config.task.reward, config.rollout.sampling.max_tokens
    require(
        bool(reward.parts or data.path) or data.source != "file",
        f"task={config.task.name} has no problems: add sets of problems with +task@task.sets.NAME=TASK, or choose "
        "another task",
    )
    template = config.task.prompt.template
    require("{question}" in template, f"task.prompt.template={template!r} lacks {{question}}, where the problem is put")
    require(
        "{{question}}" not in template.replace(" ", ""),
        f"task.prompt.template={template!r} would put braces around the problem: write {{question}}",
    )
    for part in filter(_at_most_one, reward.parts[:1]):
        reached = reward.correct_at <= 1
        require(reached, f"task.reward.correct_at={reward.correct_at:g} is never reached: {part.name} is at most 1")
        wrong = f"task.reward.correct_at={reward.correct_at:g} calls all answers right: {part.name} gives wrong ones 0"
        require(reward.correct_at > 0, wrong)
    _check_parts("task.reward.parts", reward.parts)
    _check_generators_grader(config.task)
    _check_episode(config)
    for source, source_reward in reward.by_source.items():
        if source_reward.parts or not source_reward.extract:
            _check_parts(f"task.reward.by_source.{source}.parts", source_reward.parts)
        extracts = CHOICES["task.reward.extract"]
        require(
            source_reward.extract in ("", *extracts),
            f"task.reward.by_source.{source}.extract={source_reward.extract!r} is unknown: choose one of "
            f"{' | '.join(extracts)}",
        )
    require(
        not reward.by_source or bool(data.source_column),
        "task.reward.by_source needs task.data.source_column, the column that names each problem's source",
    )
    require(
        not reward.by_source or config.normalization.parts == "sum",
        "normalization.parts=each normalizes each part of the reward, and task.reward.by_source gives sources other "
        "parts: set normalization.parts=sum",
    )
    require(
        reward.overlong != "soft" or 0 < reward.overlong_buffer <= answer,
        f"task.reward.overlong_buffer={reward.overlong_buffer} must lie between 1 and rollout.sampling.max_tokens="
        f"{answer} with task.reward.overlong=soft: change it",
    )
    require(
        data.source == "arithmetic" or bool(data.path),
        f"task.data.path is empty: give the {PATHS.get(data.source)} that task={config.task.name} reads",
    )
    band = data.selection.solve_rate
    require(
        len(band) == 2 and 0 <= band[0] <= band[1] <= 1,
        f"task.data.selection.solve_rate={band} must be [low, high] with 0 <= low <= high <= 1",
    )
    require(
        0 <= data.held_out_fraction < 1,
        f"task.data.held_out_fraction={data.held_out_fraction} must lie in [0, 1): 0.1 holds out a tenth, "
        "and with 0 grpo eval asks any problem",
    )


def _check_generators_grader(task: TaskConfig) -> None:
    require(
        task.data.source == "reasoning_gym" or all(part.name != "reasoning_gym" for part in task.reward.parts),
        "task.reward.parts: reasoning_gym grades answers to its own generators' problems, and these come from "
        f"task.data.source={task.data.source}: choose another part, such as math or exact",
    )


def _check_episode(config: TrainConfig) -> None:
    """Checks what has to do with the episodes of a task that has no sets."""
    task = config.task
    uses = [part.name for part in task.reward.parts if part.name.partition("/")[0] == EPISODE]
    require(
        task.name != "verifiers" or bool(task.episode),
        "task=verifiers needs the environment that the model acts in: set task.episode=verifiers:ID, after "
        "`bash launch/verifiers.sh ID PACKAGE` has set it up",
    )
    require(
        bool(task.episode) or not uses,
        f"task.reward.parts names {uses[:1]}, which an episode returns: set task.episode, or name another part",
    )
    if not task.episode:
        require(
            task.limits == LimitsConfig(),
            "task.limits are those of episodes, and completions are single turns: set task.episode, or leave them out",
        )
        require(
            not task.python and task.gateway == TaskConfig().gateway,
            "task.python and task.gateway are those of episodes, and completions are single turns: set task.episode, "
            "or leave them out",
        )
        return
    require(
        task.prompt.chat,
        "task.episode is a conversation, and task.prompt.chat=false writes none: set task.prompt.chat=true",
    )
    require(
        task.gateway not in ("", "*", "0.0.0.0", "::"),
        f"task.gateway={task.gateway} stands for all addresses of this machine, and programs need one: name the one "
        "that they reach",
    )


def _check_parts(key: str, parts: list[RewardPartConfig]) -> None:
    require(bool(parts), f"{key} is empty: name a reward, for example [{{name: math}}]")
    names = [part.name for part in parts]
    for part in parts:
        require(bool(part.name), f"{key} has a part without a name: give it one, for example {{name: math}}")
        require(
            names.count(part.name) == 1,
            f"{key} names {part.name!r} {names.count(part.name)} times: name it once, with the sum of the weights",
        )
        _check_server(key, part)
    require(
        any(part.weight for part in parts), f"{key}: all weights are 0, so every reward would be 0: raise one of them"
    )


def _check_server(key: str, part: RewardPartConfig) -> None:
    """Checks the server of an http or judge part. Any other part must not name a server."""
    kind = remote_kind(part.name)
    if not kind:
        kinds = " or ".join(REMOTE)
        require(part.server is None, f"{key}: {part.name!r} asks no server: name the part {kinds}, or remove server")
        return
    server = part.server or RewardServerConfig()
    key = f"{key}: {part.name!r}"
    require(
        _is_address(server.url),
        f"{key} needs server.url, an address that begins with http:// or https://; it is {server.url!r}",
    )
    require(
        "@" not in urlsplit(server.url).netloc,
        f"{key}: server.url must hold no password: put the key into an environment variable, and name that in "
        "server.key_variable",
    )
    require(
        PLACE not in server.url or bool(server.key_variable),
        f"{key}: server.url holds {PLACE}: name the environment variable with the key in server.key_variable",
    )
    require(
        kind != "judge" or not ({"?", "#"} & {*server.url} or server.url.rstrip("/").endswith("/chat/completions")),
        f"{key}: server.url must be the address before /chat/completions, with neither ? nor #",
    )
    default = RewardServerConfig()
    unread = [name for name in ("model", "prompt", "pattern", "scale", "options")
              if kind == "http" and getattr(server, name) != getattr(default, name)]  # fmt: skip
    require(
        not unread,
        f"{key}: server.{', server.'.join(unread)} belong to a judge, and no http part reads them: name the part "
        "judge, or leave them out",
    )
    for name in ("at_once", "seconds", "scale"):
        require(getattr(server, name) > 0, f"{key}: server.{name}={getattr(server, name)} must be above 0")
    require(
        kind != "judge" or "{completion}" in server.prompt,
        f"{key}: server.prompt lacks {{completion}}, where the completion is put",
    )


def _is_address(url: str) -> bool:
    """Tells whether a text is the HTTP address of a server, with a host and no invalid port.

    >>> [_is_address(url) for url in ("http://a:8000/v1", "https://[::1]/", "http://", "http://a:99999", "a:80")]
    [True, True, False, False, False]
    """
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
