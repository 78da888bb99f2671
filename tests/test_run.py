"""These tests run grpo from the command line on the real engines: learning, killing, resuming, hanging, refusing."""

import itertools
import json
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from benchmarks import runs as by_hand
from benchmarks.runs import QUIET, SMALL, facts, rows, stream, wait_for_step
from tests import warm
from tests.runs import grpo, start

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Makes a run of 12 steps in 6 rounds that nobody disturbs."""
    output = tmp_path_factory.mktemp("finished") / "run"
    done = by_hand.grpo("train", *SMALL, *ROUNDS, f"output_dir={output}", "checkpoint.export=true")
    assert done.returncode == 0, done.stderr[-3000:]
    return output, done.stdout


# Two optimizer steps a round: old log-probabilities, staleness and a refresh are all in play.
ROUNDS = [
    *("num_steps=12", "dynamics.refresh_interval=2", "checkpoint.every_rounds=2"),
    *("evaluation.suite=[tiny_arithmetic]", f"evaluation.suite_folder={Path(__file__).parent}/suite"),
    *("evaluation.greedy=true", "tracking.tensorboard=true", "tracking.completions=all"),
]


def test_a_run_leaves_metrics_evaluations_samples_a_report_and_a_model(finished):
    output, printed = finished
    assert [row["step"] for row in rows(output / "metrics.jsonl")] == [2, 4, 6, 8, 10, 12]
    assert [row["step"] for row in rows(output / "evaluations.jsonl")] == [0, 12]
    assert len(rows(output / "samples.jsonl")) == 6 * 4
    assert "<svg" in (output / "report.html").read_text() and not list(output.glob("*.png"))
    assert "Diagnosis" in (output / "dynamics.html").read_text()
    assert "pass@1" in printed and "each step: " in printed
    checkpoints = sorted((output / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["step-00000008", "step-00000012"]
    # The last one has the score of the suite, which was asked after the last step.
    last = rows(output / "evaluations.jsonl")[-1]["suite"]["tiny_arithmetic"]["pass@1"]["value"]
    assert [json.loads((path / "state.json").read_text())["score"] for path in checkpoints] == [None, last]


def test_held_out_problems_and_a_suite_are_asked_before_and_after_and_tracked(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    output, printed = finished
    for row in rows(output / "evaluations.jsonl"):
        assert {"greedy", "pass@1"} <= row.keys() and len(row["per_problem"]) == 8
        assert [problem["answer"] for problem in row["suite"]["tiny_arithmetic"]["per_problem"]] == ["19", "7", "29"]
    assert printed.count("pass@1 of tiny_arithmetic") == 2
    assert json.loads((output / "code.json").read_text())["versions"]["torch"]
    events = EventAccumulator(str(output / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("pass_rate")] == [2, 4, 6, 8, 10, 12]
    last = rows(output / "evaluations.jsonl")[-1]["suite"]["tiny_arithmetic"]["pass@1"]["value"]
    shown = [(event.step, event.value) for event in events.Scalars("evaluation/tiny_arithmetic/pass@1")]
    assert shown[1] == (12, pytest.approx(last)) and shown[0][0] == 0


def test_a_run_tells_lengths_by_kind_its_loss_the_samplers_cache_and_how_it_ended(finished):
    output, printed = finished
    for row in rows(output / "metrics.jsonl"):
        shares = [value for name, value in row.items() if re.fullmatch("completions/by_pass_rate/.*/share", name)]
        assert sum(shares) == pytest.approx(1.0)
        assert row["completions/length_p10"] <= row["completions/length_p50"] <= row["completions/length_p90"]
        assert 0 < row["rollout/cache_peak_fraction"] < 1 and row["rollout/preemptions"] == 0
        assert abs(row["policy/loss"]) < 10
    groups = [row["prompt_id"] for row in rows(output / "samples.jsonl")]
    assert len(set(groups)) == 6, "each round keeps one group whole"
    assert json.loads((output / "end.json").read_text()) == {"state": "finished", "step": 12, "why": ""}
    assert "run: finished at step 12 of 12" in printed
    assert "finished at step 12 of 12" in (output / "report.html").read_text()


def test_every_prompt_of_an_epoch_is_asked_once(finished):
    ids = [prompt_id for _, round_ids in stream(finished[0]) for prompt_id in round_ids]
    assert len(ids) == 6 * 2 * 4
    assert len(set(ids)) == len(ids)


def test_the_first_step_after_a_refresh_is_on_policy_and_later_ones_are_not(finished):
    for row in rows(finished[0] / "metrics.jsonl"):
        assert row["mismatch/mean_abs"] < 1e-5
        assert row["staleness/mean"] == 0.5
        assert row["policy/old_kl"] > 0


def test_the_exported_model_loads_in_transformers_and_is_evaluated_by_vllm(finished, tmp_path):
    from transformers import AutoModelForCausalLM

    output, _ = finished
    AutoModelForCausalLM.from_pretrained(output / "model")
    overrides = [word for word in SMALL if not word.startswith(("checkpoint", "dynamics"))]
    exported = grpo("eval", *overrides, f"model.path={output}/model", f"output_dir={tmp_path}/a")
    assert exported.returncode == 0, exported.stderr[-3000:]
    assert exported.stdout.splitlines()[-1] == f"written to {tmp_path}/a/evaluation.json", "it stands below the table"
    assert "grpo: only held-out problems are asked; " in exported.stdout + exported.stderr
    # A copy of a checkpoint may have any name.
    checkpoint = shutil.copytree(output / "checkpoints" / "step-00000012", tmp_path / "kept")
    saved = grpo("eval", *overrides, f"model.path={checkpoint}", f"output_dir={tmp_path}/b")
    assert saved.returncode == 0, saved.stderr[-3000:]
    first, second = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in "ab")
    # The same weights; the policy version, 0 or 12, is part of the samples' seeds.
    assert (first["step"], second["step"]) == (0, 12)
    assert first["problems"] == second["problems"] == 8
    assert [row["completion"] for row in second["per_problem"]] == [
        row["completion"] for row in rows(output / "evaluations.jsonl")[-1]["per_problem"]
    ]


def test_a_checkpoint_is_exported_as_the_run_exports_its_model(finished, tmp_path):
    output, _ = finished
    # The model goes to the disk to which a link leads.
    (tmp_path / "disk").mkdir()
    (tmp_path / "model").symlink_to(tmp_path / "disk")
    done = grpo("export", str(output), f"{tmp_path}/model")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "model").is_symlink() and (tmp_path / "disk" / "config.json").exists()
    assert f"{output}/checkpoints/step-00000012 is exported to {tmp_path}/model" in done.stdout
    for name in ("model.safetensors", "config.json", "tokenizer.json", "README.md"):
        assert (tmp_path / "model" / name).read_bytes() == (output / "model" / name).read_bytes(), name
    card = (output / "model" / "README.md").read_text()
    rate = rows(output / "evaluations.jsonl")[-1]["pass@1"]["value"]
    assert f"| 12 | pass@1 | {rate:.1%} |" in card and "| optimizer steps | 12 |" in card
    again = grpo("export", str(output), f"{tmp_path}/model")
    assert again.returncode == 2 and f"grpo: {tmp_path}/model is not an empty folder: give a new one" in again.stderr


def test_an_exported_adapter_is_what_was_merged(tmp_path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run, lora = f"{tmp_path}/run", "model.lora.rank=4"
    # Nearly greedy, so that seeds do not matter.
    settings = [*SMALL, "rollout=transformers", "evaluation.temperature=0.001", "learner.learning_rate=0.05"]
    exporting = ["num_steps=2", "checkpoint.export_every=2"]
    done = grpo("train", *settings, lora, *exporting, f"output_dir={run}")
    assert done.returncode == 0, done.stderr[-3000:]
    for words in ([f"{tmp_path}/merged"], [f"{tmp_path}/adapter", "adapter=true"]):
        done = grpo("export", run, *words)
        assert done.returncode == 0, done.stderr[-3000:]
    cards = [(tmp_path / name / "README.md").read_text().splitlines()[1] for name in ("merged", "adapter")]
    assert cards == ["library_name: transformers", "library_name: peft"]
    base = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"]
    tokens = torch.arange(3, 20)[None]
    merged, plain = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (tmp_path / "merged", base)
    )
    before, expected = plain(tokens).logits, merged(tokens).logits
    adapter = PeftModel.from_pretrained(plain, tmp_path / "adapter")
    torch.testing.assert_close(adapter(tokens).logits, expected, rtol=1e-4, atol=1e-4)
    assert (before - expected).abs().max() > 0.1
    left, exported = f"{run}/models/step-00000002", tmp_path / "adapter" / "adapter_model.safetensors"
    assert Path(left, exported.name).read_bytes() == exported.read_bytes()
    trained = [row["completion"] for row in rows(Path(run) / "evaluations.jsonl")[-1]["per_problem"]]
    for index, place in enumerate((f"{run}/checkpoints/step-00000002", left, f"{tmp_path}/merged")):
        output = tmp_path / f"from-{index}"
        done = grpo("train", *settings, "num_steps=1", f"model.path={place}", f"output_dir={output}")
        assert done.returncode == 0, done.stderr[-3000:]
        evaluated = rows(output / "evaluations.jsonl")[0]["per_problem"]
        assert [row["completion"] for row in evaluated] == trained, place
    other = [f"model.path={tmp_path}/merged", "checkpoint.resume=true", "num_steps=3", f"output_dir={run}"]
    done = grpo("train", *settings, lora, *other)
    assert done.returncode == 2 and done.stderr.count("grpo: ") == 1
    assert f"step-00000002 were trained on tiny, but {tmp_path}/merged now holds other weights" in done.stderr


def test_a_loss_and_a_normalization_of_ones_own_train_a_model(tmp_path):
    readme = Path(__file__).resolve().parent.parent / "grpo" / "algorithm" / "README.md"
    [example] = re.findall(r"```python\n(# my_losses.py\n.*?)```", readme.read_text(), re.DOTALL)
    ranks_of = (
        "\n\ndef ranks_of(rewards, step, settings):\n    return (2.0 * (rewards > rewards.median()) - 1).double()\n"
    )
    (tmp_path / "mine.py").write_text(example + ranks_of)
    keys, norms = ("objective.name", "normalization.name"), {}
    for name, own in {"own": ["soft_clip", "ranks_of"], "own loss": ["soft_clip"], "built in": []}.items():
        words = [f"{key}={tmp_path}/mine.py:{one}" for key, one in zip(keys, own, strict=False)]
        settings = ["rollout=transformers", "evaluation.num_problems=0", "num_steps=2", "dynamics.refresh_interval=2"]
        output = tmp_path / name.replace(" ", "-")
        done = grpo("train", *SMALL, *settings, *words, f"output_dir={output}")
        assert done.returncode == 0, done.stderr[-3000:]
        [row] = rows(output / "metrics.jsonl")
        norms[name] = row["learner/gradient_norm"]
    # The three learn from the same samples, and each of them something else.
    assert len(set(norms.values())) == 3 and min(norms.values()) > 0


def test_every_completion_is_kept_if_asked_and_shown(finished):
    import pyarrow.parquet as pq

    output, _ = finished
    kept = pq.read_table(output / "completions").to_pylist()
    assert len(kept) == sum(tried for _, tried in counts_of_rounds(output))
    assert sum(row["correct"] for row in kept) == sum(correct for correct, _ in counts_of_rounds(output))
    right = grpo("samples", str(output), "correct=true", "limit=0").stdout
    assert right.count("✓ right · ") == sum(row["correct"] for row in kept) and "wrong · " not in right


def counts_of_rounds(output):
    """Returns the (correct, tried) completions of every prompt of a run."""
    return [tuple(count) for row in rows(output / "prompts.jsonl") for count in row["correct"]]


def test_a_run_that_is_stopped_then_killed_and_resumed_equals_one_that_never_was(finished, tmp_path):
    output = tmp_path / "run"
    overrides = [*SMALL, *ROUNDS, f"output_dir={output}"]
    process = start("train", *overrides, "checkpoint.every_rounds=0", "checkpoint.resume=auto")
    wait_for_step(output, 2, process)
    process.send_signal(signal.SIGSTOP)
    second = grpo("train", *overrides)
    assert second.returncode == 2 and f"that still goes on (process {process.pid} on" in second.stderr
    assert second.stderr.count("grpo:") == 1 and "Traceback" not in second.stderr
    # Nobody reads what the run prints any more, as when `tee` ends in `grpo train 2>&1 | tee log`.
    process.stdout.close()
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    stopped_at = rows(output / "metrics.jsonl")[-1]["step"]
    assert stopped_at < 6
    assert [path.name for path in (output / "checkpoints").iterdir()] == [f"step-{stopped_at:08d}"]

    process = start("train", *overrides, "checkpoint.resume=auto", "checkpoint.every_rounds=1")
    # Two checkpoints are whole by then.
    reached = stopped_at + 6
    wait_for_step(output, reached, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # One bit of the newest one is lost; the one before is as good.
    newest = sorted((output / "checkpoints").glob("step-*"))[-1]
    [shard] = newest.glob("learner/*optim_states.pt")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    resumed = grpo("train", *overrides, "checkpoint.resume=true", "tracking.samples_per_round=1")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert f"{shard} is damaged: it differs from what was saved; trying the checkpoint before it" in resumed.stderr
    assert "changed since: tracking.samples_per_round: 4 → 1" in resumed.stdout
    first, second = rows(output / "resumptions.jsonl")
    assert (first["step"], first["reached"], first["ended"]) == (stopped_at, stopped_at, "interrupted")
    changed = [["checkpoint.every_rounds", 1, 2], ["tracking.samples_per_round", 4, 1]]
    assert (second["ended"], second["changed"]) == ("killed", changed)
    assert second["checkpoint"] == f"step-{second['step']:08d}" < newest.name
    assert stopped_at < second["step"] < reached <= second["reached"]
    assert f"The run was resumed 2 times, after steps {stopped_at} and {second['step']}." in resumed.stdout
    assert stream(output) == stream(finished[0])
    assert facts(output) == facts(finished[0])
    files = [sorted((run / "completions").iterdir()) for run in (output, finished[0])]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert all(resumed_file.read_bytes() == file.read_bytes() for resumed_file, file in zip(*files, strict=True))
    assert [row["step"] for row in rows(output / "evaluations.jsonl")] == [0, 12]
    assert rows(output / "evaluations.jsonl")[-1] == rows(finished[0] / "evaluations.jsonl")[-1]


def test_a_run_whose_machine_is_taken_away_in_a_round_equals_one_that_never_was(finished, tmp_path):
    """It is asked to stop while the third round's answers are graded, which takes longer than there is time. The
    round is sampled again."""
    output, stuck = tmp_path / "run", tmp_path / "stuck"
    (tmp_path / "rewards.py").write_text(
        "import pathlib, time\n\ndef nothing(completion, answer, metadata):\n"
        f"    log, stuck = pathlib.Path({str(output)!r}, 'prompts.jsonl'), pathlib.Path({str(stuck)!r})\n"
        "    if log.exists() and len(log.read_text().splitlines()) == 2 and not stuck.exists():\n"
        "        stuck.touch()\n        time.sleep(600)\n    return 0.0\n"
    )
    parts = f"[{{name: number}}, {{name: '{tmp_path}/rewards.py:nothing', weight: 0}}]"
    overrides = [*SMALL, *ROUNDS, f"task.reward.parts={parts}", "task.reward.timeout_seconds=600"]
    overrides += [f"output_dir={output}", "checkpoint.grace_seconds=30", "checkpoint.resume=auto"]
    process = start("train", *overrides)
    while not stuck.exists():
        assert process.poll() is None, process.stdout.read()[-3000:]
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said = process.stdout.read()
    assert process.wait(30) == 143, said[-3000:]
    assert "stopping with a checkpoint, and without the rest of this round" in said
    assert "stopped at step 4 of 12; continue with checkpoint.resume=true" in said
    resumed = grpo("train", *overrides)
    assert resumed.returncode == 0 and "resuming from step-00000004" in resumed.stdout, resumed.stderr[-3000:]
    assert stream(output) == stream(finished[0])
    assert facts(output) == facts(finished[0])
    evaluated, undisturbed = (rows(run / "evaluations.jsonl") for run in (output, finished[0]))
    assert [row["step"] for row in evaluated] == [0, 12]
    for before, after in zip(evaluated, undisturbed, strict=True):
        assert [row["completion"] for row in before["per_problem"]] == [
            row["completion"] for row in after["per_problem"]
        ]


def test_a_run_that_its_limit_ended_goes_on_when_it_is_raised_under_another_stage_but_not_under_the_third(tmp_path):
    overrides = [*SMALL, "rollout.engine=transformers", "evaluation.num_problems=0", f"output_dir={tmp_path}"]
    overrides.append("checkpoint.export=true")
    ended = grpo("train", *overrides, "limits.samples=32")
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "step 2: the limit of 32 samples is reached" in ended.stdout
    overrides += ["checkpoint.resume=true", "limits.samples=64"]
    refused = grpo("train", *overrides, "learner.zero_stage=3")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "continue with learner.zero_stage=1" in refused.stderr
    on = grpo("train", *overrides, "learner.zero_stage=2")
    assert on.returncode == 0, on.stderr[-3000:]
    assert "changed since: learner.zero_stage: 1 → 2" in on.stdout
    assert "step 4: the limit of 64 samples is reached" in on.stdout
    assert f"the model of step 2 is now in {tmp_path}/models/step-00000002" in on.stdout
    cards = [(tmp_path / place / "README.md").read_text() for place in ("models/step-00000002", "model")]
    assert ["| optimizer steps | 2 |" in cards[0], "| optimizer steps | 4 |" in cards[1]] == [True, True]
    assert [row["step"] for row in rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


def test_a_run_killed_in_the_middle_of_its_schedule_continues_it(tmp_path):
    bounds = ["dynamics.adaptive.smallest_group=6", "dynamics.adaptive.fewest_prompts=2"]
    bounds.append("dynamics.adaptive.decide_every=2")
    adaptive = ["dynamics=adaptive", *bounds, "num_steps=4", "rollout.engine=transformers"]
    overrides = [*SMALL, *adaptive, "checkpoint.every_rounds=1", "evaluation.num_problems=0", f"output_dir={tmp_path}"]
    process = start("train", *overrides)
    # After the second round the schedule decides, which has to remember that there was one before.
    wait_for_step(tmp_path, 1, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resumed = grpo("train", *overrides, "checkpoint.resume=true")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    measured = rows(tmp_path / "metrics.jsonl")
    sizes = [row["plan/group_size"] for row in measured]
    assert sizes[:2] == [4, 4] and sizes[2] >= 6
    assert measured[0]["plan/next_reason"] == "as before" and measured[1]["plan/next_reason"].startswith("G 4→")
    prompts = [row["plan/prompts_per_step"] for row in measured]
    assert prompts[:2] == [4, 4] and 2 <= prompts[2] <= 4
    assert [sum(groups for _, _, groups in row["groups/counts"]) for row in measured] == prompts
    asked = rows(tmp_path / "prompts.jsonl")
    assert [row["cursor"] for row in asked] == list(itertools.accumulate(prompts))
    assert len({prompt for row in asked for prompt in row["prompt_ids"]}) == sum(prompts)
    # From its facts alone, without a stop in between, come the same plans.
    replayed = grpo("dynamics", "replay", str(tmp_path))
    assert "replayed: 3 of 3 plans are those that the run followed" in replayed.stdout


def test_a_round_whose_completions_could_not_be_written_is_taken_again(tmp_path):
    """Its checkpoint must not be there already: a resumed run would leave the round's completions out."""
    in_the_way, marker = tmp_path / "run/completions/step-00000002-rank-0.parquet", tmp_path / "marker"
    # Once the first round is saved, the reward puts a folder where the second one's completions belong.
    (tmp_path / "rewards.py").write_text(
        "from pathlib import Path\n"
        "def f(completion, answer, metadata):\n"
        f"    saved, marker = Path({str(tmp_path)!r}, 'run/checkpoints/step-00000001'), Path({str(marker)!r})\n"
        "    if saved.exists() and not marker.exists():\n"
        f"        Path({str(in_the_way)!r}).mkdir(exist_ok=True)\n"
        "        marker.touch()\n"
        "    return float(completion == answer)\n"
    )
    overrides = [*SMALL, "rollout.engine=transformers", "num_steps=2", "evaluation.num_problems=0"]
    overrides += ["checkpoint.every_rounds=1", "tracking.completions=all", f"output_dir={tmp_path}/run"]
    overrides += [f"task.reward.parts=[{{name: '{tmp_path}/rewards.py:f'}}]"]
    failed = grpo("train", *overrides)
    assert failed.returncode and "Is a directory" in failed.stderr, failed.stderr[-3000:]
    in_the_way.rmdir()
    resumed = grpo("train", *overrides, "checkpoint.resume=true")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    files = sorted(path.name for path in in_the_way.parent.iterdir())
    assert files == ["step-00000001-rank-0.parquet", "step-00000002-rank-0.parquet"]


def test_the_round_before_a_reward_fails_is_saved(tmp_path):
    calls = tmp_path / "calls"
    (tmp_path / "rewards.py").write_text(
        f"def failing(completion, answer, metadata):\n    with open({str(calls)!r}, 'ab') as calls:\n"
        "        calls.write(b'x')\n        if calls.tell() > 2 * 16:\n"
        "            raise ValueError('it has had enough')\n    return len(completion) % 2\n"
    )
    reward = f'task.reward.parts=[{{name: "{tmp_path}/rewards.py:failing"}}]'
    overrides = [*SMALL, *QUIET, reward, "rollout.engine=transformers"]
    failed = grpo("train", *overrides, f"output_dir={tmp_path / 'run'}")
    assert failed.returncode == 2 and "it has had enough" in failed.stderr and "Traceback" not in failed.stderr
    learned = [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")]
    assert [folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir()] == [f"step-{learned[-1]:08d}"]


def test_a_run_that_loses_what_it_knew_goes_back_and_slows_down(tmp_path):
    ruinous = ["learner.learning_rate=0.03", "dynamics.refresh_interval=2", "num_steps=8", "checkpoint.keep_last=1"]
    watched = [
        "dynamics=adaptive",
        "dynamics.prompts_per_step=32",
        "dynamics.group_size=8",
        "dynamics.adaptive.smallest_group=8",
        "checkpoint.every_rounds=1",
    ]
    overrides = [*SMALL, *watched, *ruinous, "rollout.engine=transformers", "evaluation.num_problems=0"]
    done = grpo("train", *overrides, f"output_dir={tmp_path}")
    assert done.returncode == 0, done.stderr[-3000:]
    measured = rows(tmp_path / "metrics.jsonl")
    back = 1 + next(index for index, row in enumerate(measured) if row["run/went_back"])
    start, fallen, restored = (measured[index]["pass_rate"] for index in (0, back - 1, back))
    assert fallen < start / 2 < restored
    assert measured[back - 1]["plan/next_reason"].startswith("training is unstable (pass rate fell from")
    assert measured[back]["plan/refresh_interval"] < measured[0]["plan/refresh_interval"]
    # Steps are counted on, and the policy gone back to, the best so far, is kept.
    assert [row["step"] for row in measured] == sorted({row["step"] for row in measured})
    assert measured[back - 1]["plan/next_reason"].endswith("back to step 0")
    state = json.loads((tmp_path / "checkpoints" / "step-00000008" / "state.json").read_text())
    best = state["progress"]["scheduler"]["inner"]["guard"]["best_step"]
    # At the end this is 0, or a later step at which the same policy was measured again, and did better.
    assert (tmp_path / "checkpoints" / f"step-{best:08d}").exists()


def two_ranks(*words):
    return warm.ranks(2, ["-m", "grpo.cli", "train", *words])


def test_two_ranks_ask_the_prompts_of_one_and_draw_the_same_samples(finished, tmp_path):
    output = tmp_path / "run"
    overrides = [*SMALL, *ROUNDS, "num_steps=6", "learner.zero_stage=3", "objective.kl.coefficient=0.01"]
    # Both ranks decide for themselves after each round: if they did not agree, the next one would hang.
    overrides += ["dynamics=adaptive", "dynamics.adaptive.decide_every=1", "dynamics.adaptive.smallest_group=6"]
    done = two_ranks(*overrides, f"output_dir={output}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert [sorted(ids) for _, ids in stream(output)] == [sorted(ids) for _, ids in stream(finished[0])[:3]]
    measured = rows(output / "metrics.jsonl")
    assert measured[0]["plan/group_size"] == 4 and measured[1]["plan/group_size"] >= 6
    assert measured[0]["plan/next_reason"].startswith("G 4→")
    assert sum(groups for _, _, groups in measured[2]["groups/counts"]) == 8
    first, alone = measured[0], rows(finished[0] / "metrics.jsonl")[0]
    # The same seeds for the same prompts: a rank changes where a sample is drawn, not what.
    assert first["reward/mean"] == alone["reward/mean"]
    assert first["completions/length_mean"] == alone["completions/length_mean"]
    assert first["throughput/learn_tflops"] > 0 and first["mismatch/mean_abs"] < 1e-5
    # The second step is in it, at which the policy has left the reference.
    assert first["policy/reference_kl"] > 0
    assert (output / "report.html").exists()
    # Evaluated before the first step: held-out problems, greedily too, and a suite.
    assert rows(output / "evaluations.jsonl")[0] == rows(finished[0] / "evaluations.jsonl")[0]


def test_a_tracker_that_cannot_be_reached_ends_all_ranks_with_one_line_before_the_engines_start(tmp_path):
    done = two_ranks(*SMALL, f"output_dir={tmp_path}", "tracking.mlflow=http://127.0.0.1:9")
    lines = [line for line in done.stderr.splitlines() if line.startswith("grpo: ")]
    assert done.returncode == 1 and len(lines) == 1, done.stderr[-3000:]
    assert lines[0].startswith("grpo: MLflow at http://127.0.0.1:9 did not start")
    assert "Traceback" not in done.stderr.partition("torch/distributed")[0]
    # Nothing of a learner or a sampler: the run's folder has only what says which code it is, and that it failed.
    assert {path.name for path in tmp_path.iterdir()} <= {"run.lock", "code.json", "code.patch", "end.json"}


def test_a_file_that_the_first_rank_cannot_read_ends_all_ranks_with_one_line(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    damaged = tmp_path / "run" / "evaluations.jsonl"
    damaged.write_text("{\n" + damaged.read_text())
    resumed = [*ROUNDS, "num_steps=14", f"output_dir={tmp_path}/run", "checkpoint.resume=true"]
    done = two_ranks(*SMALL, *resumed, "rollout.engine=transformers")
    lines = [line for line in done.stderr.splitlines() if line.startswith("grpo: ")]
    assert lines == [f"grpo: line 1 of {damaged} is not JSON: delete that line"], done.stderr[-3000:]
    assert "gloo" not in done.stderr.lower() and "RuntimeError" not in done.stderr


def test_seconds_are_reported_once_and_belong_to_the_work_that_took_them(tmp_path):
    words = [*SMALL, "rollout.engine=transformers", "evaluation.every_rounds=1", "checkpoint.every_rounds=1"]
    done = two_ranks(*words, f"output_dir={tmp_path}", "limits.samples=32")
    assert done.returncode == 0, done.stderr[-3000:]
    # As soon as it is known, and at the end.
    assert done.stdout.count("step 2: the limit of 32 samples is reached") == 2
    for row in rows(tmp_path / "metrics.jsonl"):
        seconds = {name: value for name, value in row.items() if name.startswith("time/")}
        between = ("time/round_seconds", "time/evaluation_seconds", "time/save_seconds")
        phases = sum(value for name, value in seconds.items() if name not in between)
        assert 0 < phases < row["time/round_seconds"]
        assert seconds["time/evaluation_seconds"] > 0
        tokens = 16 * row["completions/length_mean"]
        assert row["throughput/sample_tokens_per_second"] == pytest.approx(tokens / row["time/sample_seconds"])


HANG = """
import sys, time
from grpo.host import environment
environment.prepare()

def hang(*args, **kwargs):
    time.sleep(600)

# Graders import this script too.
if __name__ == "__main__":
    import grpo.run.session
    from grpo.config.hydra import compose_config
    place = sys.argv[1]
    if place == "sync":
        grpo.run.assembly.CheckedSync.refresh = hang
    else:
        from grpo.rollout.transformers_sampler import TransformersSampler
        before = [TransformersSampler.generate] * (place == "later")
        TransformersSampler.generate = lambda *args, **kwargs: (before.pop() if before else hang)(*args, **kwargs)
    sys.exit(grpo.run.session.train(compose_config(sys.argv[2:])))
"""


@pytest.mark.parametrize(
    ("place", "phase", "key", "evaluated"),
    [
        ("sampler", "sample", "rollout.deadline_seconds", 0),
        ("later", "evaluation", "rollout.deadline_seconds", 8),
        ("sync", "sync", "weight_sync.deadline_seconds", 8),
    ],
)
def test_a_hang_is_ended_by_its_deadline_with_the_culprit_named(place, phase, key, evaluated, tmp_path):
    script = tmp_path / "hang.py"
    script.write_text(HANG)
    overrides = [*SMALL, f"output_dir={tmp_path}/run", "rollout.engine=transformers", f"{key}=2"]
    overrides += [f"evaluation.num_problems={evaluated}"]
    done = warm.run([script, place, *overrides], timeout=120)
    assert done.returncode == 75, done.stderr[-3000:]
    assert f"phase '{phase}'" in done.stderr and key in done.stderr
    assert "most recent call first" in done.stderr
