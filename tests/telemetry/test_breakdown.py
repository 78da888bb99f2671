"""These tests check lengths and truncation of a round's completions, by kind of completion."""

from dataclasses import replace

from grpo.telemetry.breakdown import CompletionFacts, breakdown, completion_facts
from grpo.types import Completion, Grade, Problem, Prompt, RolloutGroup, ScoredGroup


def group(source, *completions):
    """Makes a group of completions, given as (length, right, truncated)."""
    prompt = Prompt(Problem("p", "q", "a", source=source), (1,))
    written = tuple(Completion((5,) * length, (0.0,) * length, "", cut) for length, _, cut in completions)
    grades = tuple(Grade(float(right), right, {}) for _, right, _ in completions)
    return ScoredGroup(RolloutGroup(prompt, written, 0, 0), grades, (True,) * len(grades))


def test_facts_have_source_and_difficulty_of_their_prompt():
    facts = completion_facts(group("gsm8k", (3, True, False), (9, False, True), (4, False, False)))
    assert facts[1] == CompletionFacts(length=9, right=False, truncated=True, source="gsm8k", band="some")
    assert {fact.band for fact in completion_facts(group("", (3, False, False)))} == {"none"}


def test_completions_that_were_given_up_have_no_length():
    late = group("", (3, True, False), (0, False, False))
    completions = (late.group.completions[0], Completion.given_up(0))
    late = replace(late, group=replace(late.group, completions=completions))
    assert [fact.length for fact in completion_facts(late)] == [3]


def test_right_completions_stand_against_wrong_ones_with_percentiles():
    lengths = [(length, length <= 4, False) for length in range(1, 11)]
    numbers = breakdown(completion_facts(group("", *lengths)))
    assert [numbers[f"completions/length_p{percent}"] for percent in (10, 50, 90)] == [1.0, 5.0, 9.0]
    assert numbers["completions/right/length_mean"] == 2.5 and numbers["completions/wrong/length_mean"] == 7.5
    assert numbers["completions/wrong/length_p90"] == 10.0
    # Problems without a source have no numbers of one.
    assert not any("source" in name for name in numbers)


def test_lengths_are_broken_down_by_source_and_truncation_by_difficulty():
    facts = [
        *completion_facts(group("easy", (2, True, False), (4, True, False))),
        *completion_facts(group("hard", (8, False, True), (8, False, True), (6, False, False), (6, True, False))),
    ]
    numbers = breakdown(facts)
    assert {name: value for name, value in numbers.items() if "source" in name} == {
        **{"source/easy/length_p90": 4.0, "source/easy/share": 2 / 6},
        **{"source/hard/length_p90": 8.0, "source/hard/share": 4 / 6},
    }
    assert numbers["completions/by_pass_rate/some/truncated_fraction"] == 0.5
    assert numbers["completions/by_pass_rate/some/share"] == 4 / 6
    assert numbers["completions/by_pass_rate/all/share"] == 2 / 6
    assert "completions/by_pass_rate/none/share" not in numbers


def test_an_ungraded_completion_is_neither_right_nor_wrong_nor_of_a_hard_prompt():
    scored = group("sums", (9, False, False), (9, False, False))
    spoilt = replace(scored, grades=tuple(replace(grade, outcome="unanswered") for grade in scored.grades))
    numbers = breakdown(completion_facts(spoilt) + completion_facts(group("sums", (2, True, False))))
    assert numbers["completions/length_p90"] == numbers["source/sums/length_p90"] == 9.0
    assert numbers["completions/by_pass_rate/all/share"] == 1.0
    assert not [name for name in numbers if "wrong" in name or "none" in name]


def test_a_round_without_completions_has_no_numbers():
    assert breakdown([]) == {}
