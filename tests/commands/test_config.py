"""`grpo config` explains every key and every choice, and configs/README.md says the same."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from grpo.cli import WRONG_USE, main
from grpo.commands.config import page
from grpo.config import TrainConfig
from grpo.config.hydra import config_directory
from grpo.config.keys import Key, choices, comments, sections
from grpo.config.leaves import leaves

KEYS = {key.name: key for section in sections() for key in section.keys}
CHOICES = {choice.name: choice for choice in choices()}


class Example:
    """Not this."""

    # Not this.

    # The first line
    # and the second.
    one: int = 1
    two: int = 2


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")


def test_the_committed_page_is_what_the_command_writes(capsys):
    assert main(["config", "markdown"]) == 0
    assert capsys.readouterr().out == Path(config_directory(), "README.md").read_text()


def test_a_key_has_its_values_its_default_and_its_comment():
    assert KEYS["objective.clip_low"] == Key(
        "objective.clip_low",
        "float",
        "0.2",
        "The ratio is clipped from below at 1 − clip_low (TRL: epsilon; verl: clip_ratio_low).",
    )
    assert (KEYS["learner.schedule"].values, KEYS["learner.schedule"].default) == (
        "constant | linear | cosine",
        "constant",
    )
    assert (KEYS["dry_run"].values, KEYS["dry_run"].default) == ("true | false", "false")
    assert (KEYS["num_steps"].values, KEYS["num_steps"].default) == ("int > 0", "100")
    assert (KEYS["model.path"].values, KEYS["model.path"].default) == ("str", '""')
    assert KEYS["task.reward.parts"].values == "list of {name, weight, server}"
    assert KEYS["task.reward.parts[].weight"].default == "1.0"


def test_a_default_says_what_the_default_choices_make_of_it():
    assert KEYS["model.max_length"].default == "0"
    assert KEYS["task.prompt.max_tokens"].default == "0 (grpo train alone: 48)"
    assert KEYS["task.reward.parts"].default == "[] (grpo train alone: [{name: reasoning_gym, weight: 1.0}])"


def test_every_key_of_a_run_and_of_a_sweep_is_there_with_a_meaning():
    keys = {name for name, _ in leaves(asdict(TrainConfig()))}
    assert keys < set(KEYS)
    assert {"variants", "seeds", "budget", "amount", "jobs", "command"} < set(KEYS)
    for name, key in KEYS.items():
        assert key.meaning.endswith((".", '."')) and " " in key.meaning, name


def test_every_section_says_what_it_is():
    for section in sections():
        # A dataclass without a docstring is given its signature.
        assert section.meaning.endswith(".") and "(*" not in section.meaning, section.name


def test_every_choice_has_a_sentence_and_the_default_ones_are_marked():
    assert len(CHOICES) == len([*config_directory().glob("*/*.yaml")])
    for name, choice in CHOICES.items():
        assert choice.meaning.endswith(".") and " " in choice.meaning, name
    assert CHOICES["dynamics=fixed"].usual and not CHOICES["dynamics=adaptive"].usual
    assert [name for name, choice in CHOICES.items() if choice.usual and name.startswith("task=")] == [
        "task=arithmetic"
    ]


def test_a_comment_is_all_lines_above_its_field_and_nothing_else():
    assert comments(Example) == {"one": "The first line and the second.", "two": ""}


def test_words_are_searched_in_keys_meanings_and_choices(capsys):
    assert main(["config", "Learner.Zero"]) == 0
    printed = capsys.readouterr().out
    assert "learner.zero_stage" in printed and "0 | 1 | 2 | 3" in printed and "learner.betas" not in printed
    assert main(["config", "clip"]) == 0
    printed = capsys.readouterr().out
    assert "objective.clip_low" in printed and "objective=clip" in printed and "objective=gspo" not in printed


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("num_generations", "dynamics.group_size"),
        ("num_generations=4", "dynamics.group_size"),
        ("output_dir=/etc", "output_dir"),
        ("beta", "objective.kl.coefficient"),
        ("max_completion_length", "rollout.sampling.max_tokens"),
        ("clip_ratio_high", "objective.clip_high"),
        ("loss_agg_mode", "objective.aggregation.level"),
        ("ppo_mini_batch_size", "dynamics.prompts_per_step"),
        ("gpu_memory_utilization", "rollout.gpu_memory_fraction"),
    ],
)
def test_the_names_of_other_frameworks_lead_to_ours(word, key, capsys):
    assert main(["config", word]) == 0
    assert key in capsys.readouterr().out


def test_all_words_have_to_be_there(capsys):
    assert main(["config", "adaptive", "saving"]) == 0
    printed = capsys.readouterr().out
    assert "dynamics.adaptive.min_saving" in printed and "dynamics.adaptive.cost" not in printed


def test_a_word_that_is_nowhere_is_one_line(capsys):
    assert main(["config", "colour"]) == WRONG_USE
    assert (
        capsys.readouterr().err
        == "grpo: no key and no choice contains 'colour': `grpo config all` prints all of them\n"
    )


def test_a_key_that_is_nearly_one_leads_to_it_or_to_its_section(capsys):
    for word, lead in (
        ("learner.zero_stages", "did you mean learner.zero_stage?"),
        ("learner.zeroo", "`grpo config learner` lists them"),
        ("lerning_rate", "did you mean learner.learning_rate or dynamics.adaptive.learning_rate?"),
    ):
        assert main(["config", word]) == WRONG_USE
        assert capsys.readouterr().err == f"grpo: no key and no choice contains {word!r}: {lead}\n"


def test_without_words_sections_and_groups_are_shown_and_how_to_ask_further(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["config"]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) < 200
    assert re.search(r"objective\.kl +│ 6 +│ The KL term keeps the policy near a", printed)
    assert "smollm2_135m (default)" in " ".join(printed.replace("│", " ").split())
    assert "grpo config lora             every key and choice with this word" in printed
    assert "learner.zero_stage" not in printed


def test_all_prints_every_key_and_choice(capsys):
    assert main(["config", "all"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*KEYS, *CHOICES))


def test_a_name_of_another_framework_leads_to_the_key_or_to_what_there_is_instead(capsys):
    assert main(["config", "per_device_eval_batch_size"]) == 0
    assert "rollout.max_concurrent" in capsys.readouterr().out
    assert main(["config", "push_to_hub"]) == WRONG_USE
    assert capsys.readouterr().err == (
        "grpo: no key and no choice contains 'push_to_hub': `grpo export RUN DIRECTORY upload=USER/NAME` sends a model "
        "to the hub\n"
    )


def test_bars_between_choices_do_not_break_a_row_of_the_page():
    [row] = [line for line in page().splitlines() if line.startswith("| `learner.schedule`")]
    assert row.startswith(r"| `learner.schedule` | `constant \| linear \| cosine` | `constant` | After the warm-up")
