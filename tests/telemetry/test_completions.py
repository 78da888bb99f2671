"""Completions are kept as rows, of all rounds or of some, and read again from the last round on."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from grpo.commands import samples
from grpo.config import UserError
from grpo.telemetry.completions import CompletionFiles, read_completions, whole_completions
from grpo.types import Completion, EpisodeFacts, Grade, Observed, Problem, Prompt, RolloutGroup, ScoredGroup


def finished(step, texts=("7", "\x1b[2J8")):
    prompt = Prompt(Problem("sums-3", "3 + 4 =", "7"), (1, 2), visit=1)
    completions = tuple(Completion((5, 6), (0.0, 0.0), text, False, ((step, 2),)) for text in texts)
    grades = tuple(Grade(float(text == "7"), text == "7", {"math": float(text == "7"), "form": 0.5}) for text in texts)
    scored = ScoredGroup(RolloutGroup(prompt, completions, step, step), grades, (True,) * len(texts))
    return SimpleNamespace(
        progress=SimpleNamespace(step=step), collected=SimpleNamespace(sampled=[scored], steps=[[scored]])
    )


def test_each_rank_writes_a_file_each_round_and_the_last_round_is_read_first(tmp_path):
    ranks = [CompletionFiles(tmp_path, rank, None) for rank in (0, 1)]
    for step in (2, 12):
        for files in ranks:
            files.after_round(finished(step))
    names = sorted(path.name for path in (tmp_path / "completions").iterdir())
    assert names == [f"step-{step:08d}-rank-{rank}.parquet" for step in (2, 12) for rank in (0, 1)]
    rows = list(read_completions(tmp_path))
    assert [row["step"] for row in rows] == [12] * 4 + [2] * 4
    first = rows[0]
    assert (first["prompt_id"], first["sample"], first["completion"], first["reward"]) == ("sums-3@1", 0, "7", 1.0)
    assert (first["reward/math"], first["reward/form"], first["tokens"], first["correct"]) == (1.0, 0.5, 2, True)
    assert first["versions"] == [[12, 2]]
    assert pq.read_table(tmp_path / "completions").num_rows == 8


def test_a_group_that_another_rank_learned_from_has_its_step_and_ranks_come_in_their_order(tmp_path):
    for rank in (2, 10):
        own_round = finished(2, (str(rank),))
        own_round.collected.steps = [[], own_round.collected.sampled] if rank == 10 else [[], []]
        CompletionFiles(tmp_path, rank, None, lambda own: [own, {"sums-3@1": 1}]).after_round(own_round)
    assert [(row["completion"], row["learned_in"]) for row in read_completions(tmp_path)] == [("2", 1), ("10", 1)]


def test_a_resumed_run_writes_the_rounds_after_its_checkpoint_again(tmp_path):
    files = CompletionFiles(tmp_path, 0, None)
    for step in (2, 4, 6):
        files.after_round(finished(step))
    CompletionFiles(tmp_path, 1, 4)
    assert {row["step"] for row in read_completions(tmp_path)} == {2, 4, 6}
    CompletionFiles(tmp_path, 0, 4)
    assert {row["step"] for row in read_completions(tmp_path)} == {2, 4}
    CompletionFiles(tmp_path, 0, None)
    assert not list((tmp_path / "completions").iterdir())


def test_samples_are_chosen_by_words_and_cannot_control_the_terminal(tmp_path, capsys):
    files = CompletionFiles(tmp_path, 0, None)
    for step in (2, 4):
        files.after_round(finished(step))

    def shown(*words):
        assert samples.run([str(tmp_path), *words]) == 0
        return capsys.readouterr().out

    first = shown("limit=1")
    assert "step 4 · sums-3@1 · 1 of 2 right" in first and "step 2" not in first
    assert "✓ right · reward 1 · 2 tokens\n7\n" in first and "✗ wrong · reward 0 · 2 tokens" in first
    wrong = shown("correct=false", "step=2")
    assert wrong.count("✗ wrong") == 1 and "✓ right" not in wrong and "step 4" not in wrong
    assert "\\x1b[2J8" in wrong and "\x1b" not in wrong
    assert shown("contains=8").count("✗ wrong") == 2
    assert shown("problem=sums-3@").count("of 2 right") == 2
    assert "no completion fits outcome=failed" in shown("outcome=failed")
    kept = "no completion fits step=50: the run kept completions of the steps 2 to 4, whose problems have no sources"
    assert kept in " ".join(shown("step=50").split())
    with pytest.raises(UserError, match=r"--limit is no KEY=VALUE: write it as limit=VALUE"):
        samples.run([str(tmp_path), "--limit", "3"])


def test_a_folder_whose_samples_are_empty_is_named(tmp_path):
    (tmp_path / "samples.jsonl").write_text("")
    with pytest.raises(UserError, match="holds no completions: its run has finished no round, or kept none"):
        samples.run([str(tmp_path)])


def test_completions_of_a_group_that_could_not_be_graded_are_neither_right_nor_wrong(tmp_path, capsys):
    row = {"step": 1, "prompt_id": "sums-1@0", "question": "3 + 4 =", "answer": "7", "completion": "7", "tokens": 2}
    row |= {"reward": 0.0, "correct": False, "outcome": "raised"}
    (tmp_path / "samples.jsonl").write_text(json.dumps(row) + "\n")
    assert samples.run([str(tmp_path), "group=ungraded"]) == 0
    shown = capsys.readouterr().out
    assert "step 1 · sums-1@0 · not graded" in shown and "– not graded · 2 tokens · raised\n7\n" in shown
    assert "wrong" not in shown and "reward" not in shown
    assert samples.run([str(tmp_path), "group=wrong"]) == 0
    assert "no completion fits" in capsys.readouterr().out


def test_groups_are_chosen_by_steps_source_question_and_kind(tmp_path, capsys):
    rows = [
        {"step": step, "prompt_id": f"{source}-{step}@0", "source": source, "question": question, "answer": "7"}
        | {"completion": text, "reward": float(text == "7"), "correct": text == "7", "outcome": "graded", "tokens": 2}
        for step, source, question, texts in (
            (1, "sums", "3 + 4 =", "78"),
            (2, "sums", "2 + 5 =", "77"),
            (2, "tables", "7 × 1 =", "89"),
            (3, "sums", "1 + 6 =", "98"),
        )
        for text in texts
    ]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def prompts_shown(*words):
        assert samples.run([str(tmp_path), *words]) == 0
        return [line.split(" · ")[1] for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]

    assert prompts_shown() == ["sums-3@0", "sums-2@0", "tables-2@0", "sums-1@0"]
    assert prompts_shown("step=1-2", "source=sums") == ["sums-2@0", "sums-1@0"]
    assert prompts_shown("prompt=×") == ["tables-2@0"]
    assert prompts_shown("group=mixed") == ["sums-1@0"] and prompts_shown("group=right") == ["sums-2@0"]
    assert prompts_shown("group=wrong", "limit=1") == ["sums-3@0"]
    with pytest.raises(UserError, match="step='2-1' is not valid: it must be a whole number, or a range such as 10-20"):
        samples.run([str(tmp_path), "step=2-1"])
    with pytest.raises(UserError, match=r"group='some' is none of mixed \| right \| wrong"):
        samples.run([str(tmp_path), "group=some"])
    with pytest.raises(UserError, match=r"outcome='lost' is none of graded"):
        samples.run([str(tmp_path), "outcome=lost"])


def test_a_damaged_file_is_named(tmp_path):
    CompletionFiles(tmp_path, 0, None).after_round(finished(4))
    file = tmp_path / "completions" / "step-00000004-rank-0.parquet"
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(UserError, match=r"step-00000004-rank-0.parquet is damaged \(.*\): remove it"):
        samples.run([str(tmp_path)])


def test_a_file_that_has_the_name_of_another_round_is_named(tmp_path):
    CompletionFiles(tmp_path, 0, None).after_round(finished(4))
    file = tmp_path / "completions" / "step-00000004-rank-0.parquet"
    file.rename(file.with_name("step-00000006-rank-0.parquet"))
    with pytest.raises(UserError, match=r"step-00000006-rank-0.parquet has those of step 4: give it its own"):
        list(read_completions(tmp_path))


def test_rounds_without_parquet_files_are_read_from_the_samples(tmp_path):
    CompletionFiles(tmp_path, 0, None).after_round(finished(4))
    rows = [{"step": step, "completion": f"sample of {step}"} for step in (2, 4, 6, 6)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = [(row["step"], row["completion"]) for row in read_completions(tmp_path)]
    assert read == [(6, "sample of 6"), (6, "sample of 6"), (4, "7"), (4, "\x1b[2J8"), (2, "sample of 2")]


def test_further_numbers_are_kept_where_the_first_completion_has_none(tmp_path):
    done = finished(2)
    done.collected.sampled[0].grades[1].parts["math/steps"] = 3.0
    CompletionFiles(tmp_path, 0, None).after_round(done)
    assert [row["reward/math/steps"] for row in read_completions(tmp_path)] == [None, 3.0]


def test_without_parquet_files_the_samples_of_each_round_are_shown(tmp_path, capsys):
    with pytest.raises(UserError, match="has no samples.jsonl: give the folder of a run"):
        samples.run([str(tmp_path)])
    row = {"prompt_id": "p@0", "question": "q", "answer": "a", "completion": "b", "reward": 0.5, "correct": False}
    rows = [row | {"step": step, "outcome": "timed_out", "tokens": 3} for step in (1, 2)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert samples.run([str(tmp_path), "limit=1"]) == 0
    printed = capsys.readouterr().out
    assert "step 2 · p@0 · 0 of 1 right" in printed and "✗ wrong · reward 0.5 · 3 tokens · timed_out" in printed
    with pytest.raises(UserError, match="correct='maybe' is not valid: it must be true or false"):
        samples.run([str(tmp_path), "correct=maybe"])
    with pytest.raises(UserError, match="limit='-1' is not valid: it must be a whole number of at least 0"):
        samples.run([str(tmp_path), "limit=-1"])


def test_a_problem_with_half_a_character_is_kept_with_it_escaped(tmp_path):
    CompletionFiles(tmp_path, 0, None).after_round(finished(2, ("7", "8 \ud800 \x00")))
    assert [row["completion"] for row in read_completions(tmp_path)] == ["7", "8 \\ud800 \x00"]


def test_an_episode_is_shown_as_a_conversation(tmp_path, capsys):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 3, "b": 4}}}
    messages = (
        {"role": "user", "content": "3 + 4 ="},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "7"},
        {"role": "assistant", "content": "Seven."},
    )
    facts = EpisodeFacts(messages=messages, turns=2, calls=1, ended="tokens")
    observed = (Observed(1, (9, 9, 9)),)
    episode = Completion((5, 6), (0.0, 0.0), "Seven.", True, ((4, 2),), observed, facts)
    round_of_one = finished(4, ("7",))
    [scored] = round_of_one.collected.sampled
    scored = replace(scored, group=replace(scored.group, completions=(episode,)))
    CompletionFiles(tmp_path, 0, None).after_round(
        SimpleNamespace(progress=round_of_one.progress, collected=SimpleNamespace(sampled=[scored], steps=[[scored]]))
    )
    [row] = read_completions(tmp_path)
    assert (row["turns"], row["calls"], row["observed_tokens"], row["tokens"]) == (2, 1, 3, 2)
    assert samples.run([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    conversation = "user: 3 + 4 =\nassistant: → add(a=3, b=4)\nadd: 7\nassistant: Seven.\n"
    assert f"{conversation}ended: at the limit of tokens\n" in shown


def test_single_turns_beside_episodes_are_read_as_they_are_alone(tmp_path):
    single, of_episode = finished(4), finished(4)
    CompletionFiles(tmp_path / "alone", 0, None).after_round(single)
    alone = list(whole_completions(tmp_path / "alone"))
    [scored] = of_episode.collected.sampled
    played = [replace(completion, episode=EpisodeFacts(turns=1)) for completion in scored.group.completions]
    scored = replace(scored, group=replace(scored.group, completions=tuple(played)))
    both = SimpleNamespace(sampled=[*single.collected.sampled, scored], steps=[single.collected.sampled])
    CompletionFiles(tmp_path, 0, None).after_round(SimpleNamespace(progress=single.progress, collected=both))
    assert list(whole_completions(tmp_path))[: len(alone)] == alone
    assert samples.run([str(tmp_path)]) == 0
