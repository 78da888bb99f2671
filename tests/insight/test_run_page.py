"""These tests check the page of one run: what it says, and of which runs."""

import json
import multiprocessing
import re
from dataclasses import asdict

import pytest

from grpo.cli import main
from grpo.config import UserError
from grpo.config.run import TrainConfig
from grpo.insight.diagnosis.findings import Finding
from grpo.insight.logs.logs import run_config
from grpo.insight.pages.conversation import conversation
from grpo.insight.pages.course import describe_state, how_often, resumed_at, resumptions_table
from grpo.insight.pages.page import Block, Kind, Page, write_html
from grpo.insight.pages.run_facts import about, run_facts
from grpo.insight.pages.run_page import run_tables, settings, shown_groups, write_report
from grpo.insight.pages.summary import comparable, summary_rows
from grpo.insight.pages.verdict import judge, left
from grpo.telemetry.ending import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    KILLED,
    Ending,
    Resumption,
    add_resumption,
    forget_ending,
    read_ending,
    read_resumptions,
    write_ending,
)
from tests.insight.runs import write_run
from tests.insight.structure import assert_well_made

CONFIG = {"num_steps": 40}
ROWS = [{"step": 12}]


def evaluation(step, rates):
    mean = sum(rates) / len(rates)
    rows = [{"problem_id": f"p{i}", "correct": round(rate * 4), "total": 4} for i, rate in enumerate(rates)]
    return {
        "step": step, "problems": len(rates), "samples_per_problem": 4, "temperature": 1.0, "per_problem": rows,
        "pass@1": {"value": mean, "low": mean - 0.05, "high": mean + 0.05},
    }  # fmt: skip


def metrics(*rates, norm=1.0):
    return [
        {"step": step, "pass_rate": rate, "reward/mean": rate, "learner/gradient_norm": norm, "time/round_seconds": 3.0}
        for step, rate in enumerate(rates, start=1)
    ]


def test_the_rest_of_a_run_is_counted_at_the_pace_of_its_last_rounds():
    row = {
        "plan/refresh_interval": 2, "time/round_seconds": 30.0, "completions/length_mean": 100.0,
        "completions/num_sampled": 64, "groups/counts": [], "cost/round": 0.05, "energy/round_joules": 3.6e4,
    }  # fmt: skip
    rows = [row | {"step": 2 * number} for number in range(1, 11)]
    rows[-2]["forecast/gain"] = 0.042
    # Ten rounds of two steps took 300 s; 80 steps are left.
    [number] = left(rows, 100)
    assert number[:2] == ("left until step 100", "20 min")
    assert number[2] == "256,000 tokens, 2.00 of money, 0.4 kWh, pass rate +4.2 points, as forecast"
    assert left(rows, 20) == left([], 20) == []


def test_a_change_without_spread_is_printed_without_an_interval():
    verdict = judge(metrics(*[0.5] * 12, *[0.25] * 12), [])
    assert verdict.lines[0] == "The model gets worse: its pass rate in training fell by -0.250."


def test_a_run_that_learned_is_said_to_have_with_what_it_took():
    rounds = [row | {"energy/round_joules": 9e5} for row in metrics(0.2, 0.4)]
    verdict = judge(rounds, [evaluation(0, [0.25] * 30), evaluation(2, [0.75] * 24 + [0.25] * 6)])
    assert verdict.numbers[-1].name == "energy of all rounds"
    assert verdict.numbers[-1].note == "0.013 kWh a point of pass@1, by the counters of GPUs and processors"
    partly = judge([rounds[0], *metrics(0.2, 0.4)], [evaluation(0, [0.25] * 30)]).numbers[-1]
    assert (partly.name, partly.value) == ("energy of 1 of 3 rounds", "0.25 kWh")
    assert verdict.mood == "good"
    assert verdict.lines[0].startswith("The model learned: it now solves 65.0% of the held-out problems at the first")
    assert "24 got better and 0 worse (randomization test, p < 0.001)" in verdict.lines[1]
    assert [number.value for number in verdict.numbers] == ["65.0%", "+40.0", "6 s", "0.5 kWh"]


def test_the_page_says_that_a_handful_of_problems_are_too_few():
    """Three of eight problems were flipped by chance: two of eight choices of their signs reach as far."""
    verdict = judge(metrics(0.2), [evaluation(0, [0.0] * 8), evaluation(1, [1.0] * 3 + [0.0] * 5)])
    assert verdict.mood == "unsure" and verdict.lines[0].startswith("No clear change")
    assert "8 problems are too few to say more" in verdict.lines[1]
    assert "Of 8 problems 3 got better and 0 worse (randomization test, p = 0.25)" in verdict.lines[2]
    assert verdict.numbers[1].note == "95 % interval 0.0 to +100.0"


def test_verdict_and_interval_never_disagree():
    """A bootstrap's interval would be +1.9 to +21.2, beside a sign test of p = .125."""
    before, after = [0.0] * 12 + [0.5], [0.25] * 5 + [0.5] + [0.0] * 6 + [0.25]
    verdict = judge(metrics(0.2), [evaluation(0, before), evaluation(1, after)])
    assert verdict.mood == "unsure" and "Chance alone may explain the difference." in verdict.lines[0]
    assert "6 got better and 1 worse (randomization test, p = 0.11)" in verdict.lines[2]
    assert verdict.numbers[1].note == "95 % interval 0.0 to +25.0"


def test_a_set_of_the_suite_that_surely_changed_leads_where_the_held_out_problems_tell_nothing():
    few = [evaluation(0, [0.0] * 4), evaluation(1, [0.5] * 2 + [0.0] * 2)]
    sets = [{"mine": evaluation(0, [0.0] * 30)}, {"mine": evaluation(1, [0.5] * 12 + [0.0] * 18)}]
    verdict = judge(metrics(0.2), [row | {"suite": suite} for row, suite in zip(few, sets, strict=True)])
    assert verdict.mood == "good"
    assert verdict.lines[0] == (
        "On mine the model learned: it solves 20.0% of the 30 problems at the first try; before it was 0.0% (12 got "
        "better and 0 worse, p < 0.001)."
    )
    same = [row | {"suite": {"mine": sets[0]["mine"]}} for row in few]
    unsure = judge(metrics(0.2), same)
    assert unsure.mood == "unsure" and unsure.lines[0].startswith("No clear change: the model now solves 25.0%")
    assert unsure.lines[-1].startswith("On mine the model did not clearly change: it solves 0.0%")


def test_the_sets_of_a_suite_are_corrected_for_their_number_and_a_clear_one_leads():
    """Six of six problems got better on each set, or 12 of 12 on one; by chance alone one of 32 choices of signs and
    one of 2048 reach as far."""
    few = [evaluation(0, [0.0] * 4), evaluation(1, [0.5] * 2 + [0.0] * 2)]
    old, new = ({name: evaluation(step, rates) for name in "ab"} for step, rates in ((0, [0.0] * 6), (1, [0.5] * 6)))
    one, both = (
        judge(metrics(0.2), [few[0] | {"suite": first}, few[1] | {"suite": last}])
        for first, last in (({"a": old["a"]}, {"a": new["a"]}), (old, new))
    )
    assert one.mood == "good" and one.lines[0].startswith("On a the model learned")
    assert both.mood == "unsure" and both.lines[0].startswith("No clear change")
    clear = [evaluation(0, [0.0] * 12), evaluation(1, [0.5] * 12)]
    led = judge(metrics(0.2), [few[0] | {"suite": old | {"c": clear[0]}}, few[1] | {"suite": new | {"c": clear[1]}}])
    assert led.mood == "good" and led.lines[0].startswith("On c the model learned")
    assert "On a the model did not clearly change" in led.lines[1]


def test_a_run_without_answers_is_judged_by_its_mean_reward():
    def rewarded(step, rewards):
        result = evaluation(step, [1.0] * len(rewards))
        rows = zip(result["per_problem"], rewards, strict=True)
        texts = {"answer": "", "question": "q", "completion": "c"}
        return result | {
            "mean_reward": sum(rewards) / len(rewards),
            "per_problem": [row | texts | {"reward": reward} for row, reward in rows],
            **{"pass@k": {"1": result["pass@1"]}, "truncated_fraction": 0.0, "mean_length": 3.0},
        }

    before, after = rewarded(0, [4.0] * 30), rewarded(2, [5.5] * 30)
    verdict = judge(metrics(0.2, 0.4), [before, after])
    assert verdict.lines[0] == (
        "The model learned: it now earns a mean reward of 5.5 on the held-out problems; before training it was 4."
    )
    assert verdict.numbers[:2] == [
        ("held-out mean reward after step 2", "5.5", "4 before"),
        ("change of the mean reward", "+1.50", ""),
    ]
    assert summary_rows(before, after)[1] == ["mean reward", "4", "5.5", "+1.50"]
    assert not any("@" in cells[0] for cells in summary_rows(before, after))
    few = [evaluation(40, [0.0] * 4), evaluation(42, [0.5] * 2 + [0.0] * 2)]
    suite = [row | {"suite": {"mine": of}} for row, of in zip(few, (before, after), strict=True)]
    lines = judge(metrics(0.2, 0.4), suite).lines
    assert lines[0].startswith(
        "On mine the model learned: it earns a mean reward of 5.5 on 30 problems; before it was 4 ("
    )
    # An evaluation of a later policy is not one before training.
    assert "; after step 40 it was 0.0%." in lines[1]


def test_an_evaluation_before_the_last_step_is_said_to_be_one():
    verdict = judge(metrics(0.2, 0.4, 0.4), [evaluation(0, [0.25] * 30), evaluation(2, [0.75] * 24 + [0.25] * 6)])
    assert verdict.lines[0].startswith("The model learned: it solved 65.0% of the held-out problems")
    assert verdict.lines[0].endswith("The last evaluation was after step 2.")


def test_where_no_problem_changed_there_is_no_interval_of_nothing():
    verdict = judge(metrics(0.2, 0.4), [evaluation(0, [0.25] * 30), evaluation(2, [0.25] * 30)])
    assert verdict.numbers[1][1:] == ("0.0", "no problem changed")
    assert "Chance" not in verdict.lines[0]


def test_evaluations_that_asked_something_else_are_not_compared():
    before, after = evaluation(0, [0.25] * 30), evaluation(2, [0.75] * 30)
    with pytest.raises(UserError, match=r"the evaluations differ in temperature \(1.0 and 0.5\)"):
        judge(metrics(0.2, 0.4), [before, after | {"temperature": 0.5}])
    with pytest.raises(UserError, match="the evaluations asked different problems"):
        judge(metrics(0.2, 0.4), [before, evaluation(2, [0.75] * 29) | {"problems": 30}])


@pytest.mark.slow
def test_a_run_resumed_with_other_problems_compares_the_evaluations_that_it_can(tmp_path, capsys):
    def asked(step, sums):
        result = evaluation(step, [0.5] * len(sums))
        texts = [{"question": f"{a} + {a} =", "answer": str(2 * a), "completion": "2"} for a in sums]
        rows = [row | text for row, text in zip(result["per_problem"], texts, strict=True)]
        counts = {"truncated_fraction": 0.0, "mean_length": 3.0, "pass@k": {"1": result["pass@1"]}, "maj@k": None}
        return result | counts | {"per_problem": rows}

    write_run(tmp_path, rounds=9)
    # The problems' ids are those of rows, which another order of the file gives to others.
    rows = [asked(0, [1, 2, 3]), asked(3, [3, 2, 1]), asked(6, [3, 2, 1]), asked(9, [3, 2, 1])]
    for row in rows:
        del row["maj@k"]
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_report(tmp_path, None)
    said = "1 earlier evaluation is left out, since the evaluations asked different problems."
    printed = capsys.readouterr().out
    assert said in printed and "step 3" in printed
    assert said in (tmp_path / "report.html").read_text()
    assert comparable(rows[1:]) == (rows[1:], [])
    kept, remarks = comparable([*rows, asked(9, [3, 2, 1]) | {"temperature": 0.5}])
    assert [row["temperature"] for row in kept] == [0.5]
    assert remarks == ["4 earlier evaluations are left out, since the evaluations differ in temperature (1.0 and 0.5)."]


def test_a_run_whose_weights_never_changed_learned_nothing_whatever_chance_says():
    verdict = judge(metrics(0.2, 0.9, norm=0.0), [evaluation(0, [0.25] * 30), evaluation(2, [0.75] * 30)])
    assert verdict.mood == "bad" and verdict.lines[0].startswith("Nothing was learned")


def test_a_verdict_names_the_cause_that_the_diagnosis_found_and_promises_none():
    still = metrics(0.2, 0.2, norm=0.0)
    assert judge(still, []).lines == ["Nothing was learned: no optimizer step changed the weights."]
    raised = Finding("grading fails", "critical", "88% of answers raised", "fix it")
    assert judge(still, [], [raised]).lines[1].startswith("The cause: some answers are never graded, so nothing can")
    sides = [evaluation(0, [0.25] * 8), evaluation(2, [0.0] * 4 + [0.25] * 4)]
    verdict = judge(metrics(0.2, 0.0), sides, [raised])
    assert verdict.mood == "bad" and "Chance" not in verdict.lines[0] and verdict.lines[1].startswith("The cause: ")
    note = Finding("on the plateau", "note", "", "")
    assert "The cause" not in " ".join(judge(metrics(0.2, 0.0), sides, [note]).lines)


def test_without_held_out_problems_the_training_curve_is_judged_once_it_is_long_enough():
    assert "Too early to say: 3 rounds" in judge(metrics(0.1, 0.5, 0.9), []).lines[0]
    rising = judge(metrics(*(step / 40 for step in range(40))), [])
    assert rising.mood == "good" and "The model learns: its pass rate in training rose" in rising.lines[0]
    assert "may have memorized" in rising.lines[1]


def _hold(folder, ready, over):
    from grpo.host.folder_lock import locked
    from tests.fakes import SingleRank

    with locked(folder, SingleRank()):
        ready.set()
        over.wait(60)


def test_how_a_run_ended_is_read_from_its_folder(tmp_path):
    assert "without a word: it was killed" in describe_state(tmp_path, ROWS, CONFIG)
    for state, said in (
        (FINISHED, "finished at step 12 of 40"),
        (INTERRUPTED, "interrupted at step 12 of 40; checkpoint.resume=true goes on"),
        (FAILED, "failed at step 12 of 40: the disk is full"),
    ):
        write_ending(tmp_path, Ending(state, 12, "the disk is full" if state == FAILED else ""))
        assert describe_state(tmp_path, ROWS, CONFIG) == said
    forget_ending(tmp_path)
    assert read_ending(tmp_path) is None
    assert describe_state(tmp_path, [{"step": 40}], CONFIG) == "finished at step 40 of 40", "of an earlier version"


def test_a_run_that_goes_on_is_distinguished_from_a_killed_one(tmp_path):
    context = multiprocessing.get_context("fork")
    ready, over = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready, over))
    process.start()
    try:
        assert ready.wait(30)
        assert describe_state(tmp_path, ROWS, CONFIG) == "still goes on, at step 12 of 40"
    finally:
        over.set()
        process.join(30)
    assert "it was killed" in describe_state(tmp_path, ROWS, CONFIG)


RATE = ("learner.learning_rate", 0.0003, 0.0002)


def test_a_page_says_where_its_run_was_resumed_and_how_it_had_ended_before(tmp_path):
    assert how_often(read_resumptions(tmp_path)) == [] and resumptions_table([]) == []
    add_resumption(tmp_path, Resumption(10, "step-00000010", 13, KILLED, changed=[RATE]))
    killed = "The run was resumed after step 10: it had been killed, or its machine was lost, at step 13."
    assert how_often(read_resumptions(tmp_path)) == [killed]
    # A process that was killed, or had no more disk, while it wrote a line leaves a part of it.
    with (tmp_path / "resumptions.jsonl").open("a") as file:
        file.write('{"step": 20, "checkp')
    add_resumption(tmp_path, Resumption(1020, "step-00001020", 1020, FAILED, "the disk is full."))
    assert how_often(read_resumptions(tmp_path)) == ["The run was resumed 2 times, after steps 10 and 1,020."]
    [table] = resumptions_table(read_resumptions(tmp_path))
    assert table.content[1:] == [
        ["10", "step-00000010", "it had been killed, or its machine was lost, at step 13", "3",
         "learner.learning_rate: 0.0003 → 0.0002"],
        ["1,020", "step-00001020", "it had failed at step 1,020: the disk is full.", "0", "none"],
    ]  # fmt: skip


def test_a_resumption_that_a_later_one_went_back_behind_is_not_marked():
    starts = [Resumption(step, "", step, INTERRUPTED) for step in (20, 30, 10, 25)]
    assert resumed_at(starts) == [10, 25]


def row(step, prompt, correct, text="7", **changes):
    return {
        "step": step, "prompt_id": prompt, "question": "3 + 4 =", "answer": "7", "completion": text, "tokens": 2,
        "reward": float(correct), "correct": correct, "outcome": "graded", "truncated": False,
    } | changes  # fmt: skip


def test_groups_with_right_and_wrong_completions_are_shown_first():
    rows = [row(2, "a@0", True), row(2, "a@0", True), row(2, "b@0", False, "8", truncated=True), row(2, "b@0", True)]
    mixed, right = shown_groups(rows)
    assert (mixed["score"], right["score"]) == ("1 of 2 right", "2 of 2 right")
    assert [shown["correct"] for shown in mixed["rows"]] == [True, False]
    assert mixed["rows"][1]["facts"] == "reward 0 · 2 tokens · cut off at the token limit"


def test_a_group_without_answers_shows_rewards_and_calls_nothing_right():
    rows = [row(9, "p1@0", True, answer="", reward=reward) for reward in (3.0, 6.0)]
    [group] = shown_groups(rows)
    assert group["score"] == "mean reward 4.5"
    assert [(shown["judged"], shown["facts"]) for shown in group["rows"]] == [
        (False, "reward 3 · 2 tokens"),
        (False, "reward 6 · 2 tokens"),
    ]
    # Rewards of 0 and 1 are verdicts also without answers.
    [judged] = shown_groups([row(9, "p1@0", right, answer="", reward=float(right)) for right in (True, False)])
    assert judged["score"] == "1 of 2 right" and all(shown["judged"] for shown in judged["rows"])


def test_a_group_that_could_not_be_graded_is_shown_as_such():
    [group] = shown_groups([row(2, "a@0", False, outcome="raised")])
    assert (group["score"], group["rows"][0]["graded"]) == ("not graded", False)
    assert group["rows"][0]["facts"] == "2 tokens · raised in grading"


CALL = {"function": {"name": "add", "arguments": {"a": 3, "b": 4}}}
EPISODE = [
    {"role": "user", "content": "3 + 4 ="},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "add", "content": "7\x1b[2J"},
    {"role": "assistant", "content": "7"},
]


def test_a_single_turn_among_episodes_has_no_number_of_turns():
    messages = json.dumps([{"role": "user", "content": "1 + 1 ="}, {"role": "assistant", "content": "2"}])
    assert [said.read for said in conversation({"messages": messages, "turns": None})] == [True, False]


def test_an_episode_is_shown_as_a_conversation(tmp_path):
    facts = {"messages": json.dumps(EPISODE), "turns": 2, "calls": 1, "ended": "turns", "error": ""}
    [group] = shown_groups([row(2, "a@0", True, **facts)])
    [shown] = group["rows"]
    assert shown["facts"] == "reward 1 · 2 tokens · turns 2, calls 1 · at the limit of turns"
    assert shown["conversation"] == [
        ("user", "3 + 4 =", True),
        ("assistant", "→ add(a=3, b=4)", False),
        ("add", "7\\x1b[2J", True),
        ("assistant", "7", False),
    ]
    page = Page("Run", "x", ["It learned."], "good", [Block(Kind.COMPLETIONS, [group], "Completions")])
    write_html(page, tmp_path / "report.html")
    assert '<div class="said read"><b>add</b><pre>7\\x1b[2J</pre></div>' in (tmp_path / "report.html").read_text()


def test_a_summary_by_the_agent_is_read_and_turns_before_it_are_counted():
    said = [*EPISODE[:1], {"role": "assistant", "content": "Summary."}, EPISODE[0], EPISODE[3]]
    facts = {"messages": json.dumps(said), "written": [3], "turns": 4, "branches": 2, "calls": 1, "ended": "room"}
    [group] = shown_groups([row(2, "a@0", True, **facts)])
    [shown] = group["rows"]
    assert [one.read for one in shown["conversation"]] == [True, True, True, False]
    assert shown["facts"].endswith("3 more turns in another branch · the conversation filled model.max_length")


def test_an_episode_that_ends_at_a_limit_is_cut_off_by_that_limit_alone():
    facts = {"truncated": True, "turns": 4, "calls": 4, "ended": "turns", "error": ""}
    [group] = shown_groups([row(2, "a@0", True, **facts)])
    assert group["rows"][0]["facts"] == "reward 1 · 2 tokens · cut off · turns 4, calls 4 · at the limit of turns"


def test_the_model_has_read_the_examples_in_its_prompt():
    examples = [{"role": "user", "content": "1 + 1 ="}, {"role": "assistant", "content": "2"}]
    messages = json.dumps([*examples, *EPISODE])
    [group] = shown_groups([row(2, "a@0", True, messages=messages, turns=2, calls=1, ended="", error="")])
    said = [(name, read) for name, _, read in group["rows"][0]["conversation"] if name == "assistant"]
    assert said == [("assistant", True), ("assistant", False), ("assistant", False)]


def test_the_opening_that_all_conversations_of_a_group_share_is_shown_once(tmp_path):
    examples = [{"role": "user", "content": "1 + 1 ="}, {"role": "assistant", "content": "2"}]
    facts = {"turns": 2, "calls": 1, "ended": "", "error": ""}
    ends = [EPISODE, [*EPISODE[:-1], {"role": "assistant", "content": "8"}]]
    [group] = shown_groups([row(2, "a@0", True, messages=json.dumps([*examples, *end]), **facts) for end in ends])
    assert [said.text for said in group["opening"]] == ["1 + 1 =", "2", "3 + 4 ="]
    assert [[said.text for said in one["conversation"]][-1] for one in group["rows"]] == ["7", "8"]
    page = Page("Run", "x", ["It learned."], "good", [Block(Kind.COMPLETIONS, [group], "Completions")])
    write_html(page, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count("<pre>1 + 1 =</pre>") == 1


@pytest.mark.parametrize("messages", ["", "{", "[1]", "[[]]", '{"role": "user"}', '[{"content": "x"}]'])
def test_a_conversation_that_is_damaged_is_shown_by_its_last_turn(messages):
    [group] = shown_groups([row(2, "a@0", True, messages=messages)])
    assert (group["rows"][0]["conversation"], group["rows"][0]["text"]) == ([], "7")


def test_long_completions_lose_their_middle_and_control_characters_their_power():
    [group] = shown_groups([row(2, "a@0", False, "x" * 3000 + "\x1b[2J\u202e")])
    assert "characters left out" in group["rows"][0]["text"] and len(group["rows"][0]["text"]) < 2100
    assert "\x1b" not in group["rows"][0]["text"] and "\u202e" not in group["rows"][0]["text"]


def test_each_source_of_problems_has_a_line_with_its_share_length_and_truncation():
    numbers = {"share": 0.25, "length_mean": 8.0, "truncated_fraction": 0.5, "reward_mean": 1.0, "pass_rate": 0.75}
    rounds = [{"step": 1, **{f"source/words/{name}": value for name, value in numbers.items()}}]
    table = run_tables(rounds)[-1].content
    assert table == [["source", "share of completions", "right", "mean reward", "mean length, tokens", "cut off"],
                     ["words", "25.0%", "75.0%", "1.000", "8.0", "50.0%"]]  # fmt: skip


def test_a_round_in_which_a_source_could_not_be_graded_is_left_out_of_its_means():
    graded = {"source/words/share": 0.5, "source/words/length_mean": 8.0, "source/words/pass_rate": 0.8}
    ungraded = {"source/words/share": 0.5, "source/words/length_mean": 4.0}
    rounds = [{"step": step, **(graded if step % 2 else ungraded)} for step in range(1, 201)]
    [_, line] = run_tables(rounds)[-1].content
    assert line == ["words", "50.0%", "80.0%", "", "6.0", ""]


def test_a_set_of_problems_shows_the_settings_that_differ_from_those_of_a_task():
    task = asdict(TrainConfig())["task"]
    words = {**task, "name": "words", "weight": 2.0, "reward": {**task["reward"], "parts": [{"name": "exact"}]}}
    config = asdict(TrainConfig()) | {"task": task | {"sets": {"words": words}}, "dry_run": True}
    assert settings(config) == [
        ("key", "value"),
        ("task.sets.words.name", "words"),
        ("task.sets.words.reward.parts", "[{name: exact}]"),
        ("task.sets.words.weight", "2.0"),
        ("dry_run", "true"),
    ]


def test_a_page_names_the_model_and_the_problems_of_its_run():
    assert about({"model": {"source": "huggingface", "path": "Qwen/Qwen3-4B"}, "task": {"name": "gsm8k"}}) == (
        "model Qwen/Qwen3-4B · task gsm8k"
    )
    assert about({"model": {"source": "tiny", "path": ""}}) == "model tiny"
    assert about({}) == ""


def test_a_page_tells_how_its_run_was_started_as_far_as_it_is_known(tmp_path):
    config = {"seed": 7, "device": "cpu", "hardware": {"learner_nodes": 2, "ranks_per_node": 4}}
    assert run_facts(tmp_path, config) == [
        ("what", "value"),
        ("seed", "7"),
        ("processes that learn", "8 (device=cpu)"),
    ]
    start = {"command": "grpo train seed=7", "time": "2026-11-25 13:00:00+00:00", "user": "ada", "host": "box"}
    code = {"versions": {"torch": "2.13"}, "commit": "abc", "changed": True, "start": start | {"processors": "2 cores"}}
    (tmp_path / "code.json").write_text(json.dumps(code))
    facts = dict(run_facts(tmp_path, {"seed": 0}))
    assert facts["command"] == "grpo train seed=7" and facts["seed"] == "0" and facts["machine"] == "2 cores"
    assert facts["started or last resumed"] == "2026-11-25 13:00:00+00:00, by ada on box"
    assert (facts["versions"], facts["commit of grpo"]) == ("torch 2.13", "abc, with changes (code.patch)")
    (tmp_path / "code.json").write_text('{"vers')
    assert run_facts(tmp_path, {}) == [("what", "value")]


def test_a_page_lists_after_which_steps_the_run_changed_its_plan_or_went_back(tmp_path, capsys):
    write_run(tmp_path, 24)
    path = tmp_path / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[8] |= {"plan/next_reason": "a gate is broken: back to step 4", "run/went_back": 1.0}
    rows[15] |= {"plan/next_reason": "the rate is too high"}
    rows[19] |= {"plan/next_reason": "G 8→4"}
    for row in rows[20:]:
        row["plan/group_size"] = 4.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    table = page[page.index("Decisions of the scheduler") :]
    cells = re.findall(r"<t([hd])[^>]*>\s*([^<]*?)\s*</t\1>", table)
    listed = ["9", "a gate is broken: back to step 4", "16", "the rate is too high", "20", "G 8→4"]
    assert [text for _, text in cells[2:8]] == listed


@pytest.mark.slow
def test_grpo_report_writes_the_page_of_an_interrupted_run(tmp_path, capsys):
    folder = tmp_path / "x"
    write_run(folder, rounds=30)
    (folder / "samples.jsonl").write_text("".join(json.dumps(row(1, "a@0", bool(i))) + "\n" for i in range(2)))
    write_ending(folder, Ending(INTERRUPTED, 30))
    add_resumption(folder, Resumption(20, "step-00000020", 22, INTERRUPTED))
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "interrupted at step 30 of 200" in printed and str(folder / "report.html") in printed
    text = (folder / "report.html").read_text()
    assert "interrupted at step 30 of 200" in text and "1 of 2 right" in text
    assert "Words on this page" in text
    resumed = "The run was resumed after step 20: it had been interrupted at step 22."
    assert resumed in printed and f"<p>{resumed}</p>" in text
    assert "Where the run was resumed" in text and "The run was resumed at the dotted lines." in text
    assert "<p>The run interrupted at step 30 of 200; checkpoint.resume=true goes on.</p>" not in text
    assert "The run was interrupted at step 30 of 200; checkpoint.resume=true goes on." in text
    assert_well_made(text)
    write_ending(folder, Ending(FAILED, 30, "the disk is full"))
    assert main(["report", str(folder)]) == 0
    assert "<p>The run failed at step 30 of 200.</p><p>The disk is full.</p>" in (folder / "report.html").read_text()


@pytest.mark.parametrize("text", ['{"a', "[]"])
def test_a_damaged_configuration_of_a_run_is_named(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match="config.json is damaged"):
        run_config(tmp_path)
