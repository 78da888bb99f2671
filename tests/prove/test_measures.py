"""These tests hold that facts say what was measured, with stand-ins for engines whose numbers are known beforehand.

A GPU stands in too, because speed is judged on GPUs only.
"""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from grpo.config import TrainConfig
from grpo.host import device_memory
from grpo.prove import bench as bench_module
from grpo.prove import computation, exchange, learning, link, lost_server, roofline, sampling
from grpo.prove.bench import Bench, Room
from grpo.prove.facts import Fact, Report
from grpo.prove.lost_server import Run, Striking
from grpo.prove.roofline import Speeds
from grpo.types import Completion, GroupWithLogprobs, Prompt, RolloutGroup
from grpo.weight_sync.refresh import WeightSyncError
from tests.fakes import SingleRank, on_ranks

GPU = torch.device("cuda", 0)


class StandIn:
    """This learner needs 2 · 10¹⁴ operations for a step, and has no memory for rows of more than `longest` tokens."""

    collective, longest = SingleRank(), 10**6

    def add_logprobs(self, steps):
        return [[GroupWithLogprobs(scored) for scored in step] for step in steps]

    def step(self, batch):
        if max(len(micro.token_ids) for micro in batch.micro_batches) > self.longest:
            raise torch.OutOfMemoryError
        return SimpleNamespace(gradient_norm=1.0, flops=2e14)


def bench_with(folder, device=GPU, **attributes):
    """Returns a bench of which each measured action takes two seconds."""

    def seconds(action, times=3):
        action()
        return 2.0

    bench = Bench("tiny", folder, [], device="cpu")
    bench.device, bench.seconds = device, seconds
    vars(bench).update({"learner": StandIn(), "build": lambda: None, **attributes})
    return bench


def row_of(report, what):
    [fact] = [fact for fact in report.facts if fact.what.startswith(what)]
    return fact


@pytest.fixture
def measured(monkeypatch):
    """Sets what a learner's memory and its GPU's peak are measured to be."""

    def taking(action, device):
        action()
        return 2.5

    for name, value in {
        "peak_of_tensors_gib": taking,
        "allocated_gib": lambda device: 1.0,
        "peak_gib": lambda device: 5.0,
        "reset_peak": lambda device: None,
        "estimated_gib": lambda bench, num_ranks: 2.0,
        "peak_tflops": lambda device: 100.0,
        "_waiting": lambda bench, batch: 0.25,
        "least_mfu": lambda bench, batch, peak: 0.4,
    }.items():
        monkeypatch.setattr(learning, name, value)
    monkeypatch.setattr(device_memory, "device_gib", lambda config: 80.0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_ranks_share_a_step_whose_speed_is_printed_for_all_and_kept_for_one(tmp_path, measured):
    benches = [bench_with(tmp_path) for _ in range(2)]

    def learned(collective):
        bench = benches[collective.rank]
        bench.learner.collective = collective
        own = bench.batch(bench.made_up())
        targets = [tuple(micro.targets[micro.sequence_index == 0].tolist()) for micro in own.micro_batches]
        return targets, sum(len(micro.token_ids) for micro in own.micro_batches), learning.learning(bench)

    (first, tokens, report), (second, others, _) = on_ranks(2, learned)
    assert not set(first) & set(second)
    # 16 completions of 24 tokens, of which the last is no input, and their 4 prompts of 24.
    assert tokens == others == (16 * 23 + 4 * 24) / 2
    assert row_of(report, "packed tokens").measured == 2 * tokens / 2.0
    assert report.constants == {"learning_tokens_per_second": tokens / 2.0}
    # Both took 2 s for 2 · 10¹⁴ operations, so each reached 50 of 100 TFLOP/s.
    assert row_of(report, "share of the peak").measured == 0.5
    learned_from = {"packed_tokens": 2 * tokens, "checkpointing": False, "logit_chunk": 4096, "vocabulary": 512}
    assert report.basis == {"gpus": 2, "device_gib": 80.0, "at_rest_gib": 1.0} | learned_from


def test_a_gpu_that_is_slow_and_a_step_that_takes_more_than_was_estimated_are_reported(tmp_path, measured, monkeypatch):
    report = learning.learning(bench_with(tmp_path))
    utilization, memory = row_of(report, "share of the peak (MFU)"), row_of(report, "peak memory (est. 2)")
    # 2e14 operations in 2 s are 100 TFLOP/s, all that there is. Memory may be 1.2 of the estimate.
    assert (utilization.measured, utilization.verdict) == (1.0, "fine")
    assert (memory.measured, memory.high, memory.verdict) == (2.5, pytest.approx(2.4), "look")
    assert row_of(report, "share of waiting").measured == 0.25
    monkeypatch.setattr(learning, "peak_tflops", lambda device: 256.0)
    assert row_of(learning.learning(bench_with(tmp_path)), "share of the peak").verdict == "look"


def test_a_gpu_must_reach_a_share_of_the_mfu_that_is_counted_for_each_way(tmp_path):
    bench = Bench("tiny", tmp_path, ["learner.precision=bfloat16"], device="cpu")
    vars(bench).update(learner=StandIn(), bandwidth=1e12)
    batch, learner = bench.batch(bench.made_up()), bench.config.learner

    def least():
        """Returns the least MFU of a GPU with 1 TFLOP/s and 1 TB/s."""
        return learning.least_mfu(bench, batch, 1e12)

    kept = least()
    learner.gradient_checkpointing = True
    # At 70 % of the peak nothing but products would be counted.
    assert 0 < least() < kept < 0.7 * 0.7
    learner.offload_optimizer = True
    assert least() is None
    learner.offload_optimizer, bench.config.model.lora.rank = False, 4
    assert least() is None


def test_operations_are_counted_at_the_speed_that_limits_them():
    speeds = Speeds(flops=1e12, bytes=1e9)
    count = roofline.Count(speeds, useful=5e5, pairs=0, place=str)
    left, right = torch.empty(100, 50, device="meta"), torch.empty(50, 10, device="meta")
    with count:
        left @ right
    # 2 · 100 · 50 · 10 operations take less than 4 · (5,000 + 500 + 1,000) bytes, and both more than a launch.
    assert (count.flops, count.bytes, count.kernels) == (100_000, 26_000, 1)
    assert count.seconds == {"": 26e-6} and count.mfu == pytest.approx(5e5 / 1e12 / 26e-6)


def test_rows_are_measured_up_to_those_for_which_a_gpu_has_no_memory(tmp_path, measured, monkeypatch):
    bench, resets = bench_with(tmp_path), []
    monkeypatch.setattr(learning, "reset_peak", resets.append)
    assert [row[0] for row in learning.rows(bench).basis["rows"]] == [64, 128, 256, 512]
    assert resets == [GPU] * 4, "each length has a peak of its own"
    monkeypatch.setattr(StandIn, "longest", 256)
    tried = learning.rows(bench)
    assert [row[::2] for row in tried.basis["rows"]] == [(64, 5.0), (128, 5.0), (256, 5.0)]
    assert [fact.what for fact in tried.facts] == [f"in rows of {tokens}" for tokens in (64, 128, 256)]
    # A row that is estimated not to fit is not tried.
    monkeypatch.setattr(learning, "estimated_gib", lambda bench, _: bench.config.learner.micro_batch_tokens / 2)
    assert [row[0] for row in learning.rows(bench).basis["rows"]] == [64, 128]


def test_a_way_that_needs_more_than_is_free_is_known_before_it_is_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(Bench, "room", Room(80.0, 60.0))
    monkeypatch.setattr(learning, "estimated_gib", lambda bench, _: 40.0 + 30.0 * bench.config.learner.zero_stage)
    bench = bench_with(tmp_path, room=None)
    assert learning._lacking(bench, ["learner.zero_stage=0"], 1) == ""
    assert learning._lacking(bench, ["learner.zero_stage=1"], 1).endswith("GiB of a GPU, of which 60 are free")


def test_a_step_of_all_ranks_has_the_precision_of_the_proof_and_a_loss_of_its_own(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(computation, "measured_apart", lambda bench, *rest: asked.append((bench, rest)) or Report([]))
    words = ["learner.precision=bfloat16", "objective=cispo"]
    computation.whole_step(Bench("1.5b", tmp_path, words, device="cpu"))
    [(bench, rest)] = asked
    assert (bench.size_name, bench.overrides[1:]) == ("tiny", ["device=cpu", "learner.precision=bfloat16"])
    assert rest == ("step", "learner", "", computation.PLAIN_LOSS, 2)


class Sync:
    """This refresh notices a flipped bit. `order` is what learner and sampler were asked."""

    def __init__(self, order):
        self.order = order

    def refresh(self, learner, sampler):
        flipping = isinstance(sampler, exchange.Flipping)
        self.order.append("flipped" if flipping else "refresh")
        if flipping:
            raise WeightSyncError("other weights")


@pytest.mark.parametrize(
    ("precision", "gaps", "verdicts"),
    [
        ("bfloat16", (0.04, -0.04), ["fine", "fine"]),
        ("bfloat16", (0.06, -0.06), ["wrong", "fine"]),
        ("bfloat16", (-0.02, -0.01), ["fine", "wrong"]),
        ("float32", (0.0009, -0.0009), ["fine", "fine"]),
        ("float32", (0.0012, -0.0012), ["wrong", "fine"]),
        ("float32", (-0.0006, -0.0006), ["fine", "wrong"]),
    ],
)
def test_log_probabilities_may_differ_by_rounding_and_by_nothing_else(precision, gaps, verdicts, tmp_path, monkeypatch):
    order = []
    group = RolloutGroup(None, (Completion((5, 6), gaps, "", False),), 0, 0)
    sampler = SimpleNamespace(generate=lambda *arguments: [group], sleep=lambda: order.append("sleep"))
    learner = SimpleNamespace(
        weight_buckets=lambda: [[("weight", torch.zeros(4))]],
        logprobs=lambda groups: order.append("logprobs") or [[torch.zeros(2)]],
    )
    bench = bench_with(tmp_path, learner=learner, sampler=sampler, bandwidth=1e9)
    bench.config.learner.precision = bench.config.rollout.precision = precision
    bench.room = None
    monkeypatch.setattr(bench, "sync", lambda: Sync(order))
    facts = exchange.sync(bench).facts
    assert [fact.verdict for fact in facts[-2:]] == verdicts
    # The learner has the sampler's memory when it computes, and the sampler its own afterwards.
    assert order == ["refresh", "flipped", "refresh", "sleep", "logprobs", "refresh"]


def sampled(folder, monkeypatch, bandwidth):
    """Returns the report of a sampler whose every call takes two seconds, half of them of the engine's processor and a
    tenth for each token more, with the prompts that it was asked."""
    asked, now, watched = [], [0.0], []

    class Sampler:
        def generate(self, draw):
            asked.extend(prompt.problem.problem_id for prompt in draw.prompts)
            tokens = min(20, draw.sampling.max_tokens)
            now[0] += 2.0 if tokens == 20 else 1.0
            completion = Completion((5,) * tokens, (0.0,) * tokens, "", False)
            return [RolloutGroup(prompt, (completion,) * draw.group_size, 0, 0) for prompt in draw.prompts]

        def ask_workers(self, method):
            if method == "processor_seconds":
                return [{"seconds": now[0] / 2}]
            watched.append(now[0])
            # Kernels take a quarter of the time, in one worker less.
            return [] if len(watched) % 2 else [{"seconds": (now[0] - watched[-2]) / share} for share in (8, 4)]

    monkeypatch.setattr(sampling, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(sampling, "_sleep", lambda bench: [])
    bench = bench_with(folder, sampler=Sampler(), bandwidth=bandwidth, room=None)
    bench.config.rollout.precision = "bfloat16"
    return sampling.sampler(bench), asked, bench


def test_a_sampler_reaches_a_share_of_what_the_memory_allows(tmp_path, monkeypatch):
    report, asked, bench = sampled(tmp_path, monkeypatch, 1e9)
    assert report.constants == {"sampling_tokens_per_second": [(4, 40.0), (16, 160.0)]}
    # No prompt is in the prefix cache when it is measured.
    assert len(asked) == len(set(asked))
    # 20 steps read all weights but the input embedding, and 16 completions that are 24 + 10 long on average.
    read = 20 * 2 * (bench.shape.parameters - 512 * 128 + 2 * 2 * 64 * 34 * 16)
    share = row_of(report, "share of the roofline")
    assert share.measured == pytest.approx(read / 1e9 / 2.0)
    # Ten steps more take one second more, half of it of the processor. Kernels take a quarter of it.
    assert row_of(report, "processor time of a step").measured == pytest.approx(50.0)
    assert row_of(report, "share of waiting for the host").measured == pytest.approx(0.75)
    # All twenty steps take the processor a second at least, and memory less.
    assert share.low == pytest.approx(0.7 * read / 1e9) and share.verdict == "look"
    quick, _, _ = sampled(tmp_path, monkeypatch, read / 1.5)
    assert row_of(quick, "share of the roofline").low == pytest.approx(0.7)
    assert row_of(quick, "share of the roofline").verdict == "fine"
    assert report.basis["cache_gib"] == pytest.approx(2 * 2 * 64 * 2 * 48 * 16 / 2**30)


def test_sampling_without_graphs_reports_its_failures_with_its_speed(tmp_path, monkeypatch):
    facts = [
        Fact("sampler", "16 completions at once", 50.0, "tokens/s"),
        Fact("sampler", "share of the roofline", 0.1, low=0.6),
        Fact("sampler", "exit code of its process", 1, low=0.0, high=0.0),
    ]
    monkeypatch.setattr(sampling, "measured_apart", lambda *arguments: Report(facts))
    kept = sampling.without_graphs(bench_with(tmp_path))
    assert [fact.verdict for fact in kept.facts] == ["–", "wrong"]


def test_a_sleep_that_takes_long_is_slow(monkeypatch):
    clock = iter([0.0, 5.1])
    monkeypatch.setattr(sampling, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 2**30))
    engine, sync = SimpleNamespace(sleep=lambda: None), SimpleNamespace(refresh=lambda *engines: None)
    bench = SimpleNamespace(config=TrainConfig(), device=None, learner=None, sampler=engine, sync=lambda: sync)
    assert [fact.verdict for fact in sampling._sleep(bench)] == ["wrong", "look"]


def test_an_action_takes_the_median_after_a_warm_up_and_a_gpu_is_waited_for(tmp_path, monkeypatch):
    clock, waits = iter([0.0, 90.0, 100.0, 101.0, 200.0, 205.0, 300.0, 302.0]), []
    monkeypatch.setattr(bench_module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("wait"))
    bench = Bench("tiny", tmp_path, [], device="cpu")
    bench.device = GPU
    assert bench.seconds(lambda: waits.append("action")) == 2.0
    assert waits == ["action", "wait"] * 4


def test_half_of_the_made_up_completions_are_right_so_that_there_is_something_to_learn(tmp_path):
    bench = bench_with(tmp_path)
    [micro] = bench.batch(bench.made_up()).micro_batches
    assert micro.advantages.sign().unique().tolist() == [-1, 1]
    assert [grade.correct for grade in bench.grades] == [False, True, False, True]


def test_a_copy_reads_and_writes(tmp_path):
    bench = bench_with(tmp_path, device=torch.device("cpu"))
    assert bench.bandwidth == 2 * 2**26 / 2.0


# Each of the first two rounds warms up.
WALLS = [90.0, 80.0, 10.0, 10.0, 12.0, 12.0]


def ran(folder, monkeypatch, code=0, phases=(5.5, 3.3, 1.1)):
    def train(command, enough):
        (folder / "round").mkdir()
        names = ("round", "sample", "learn", "sync", "sleep")
        rows = [
            {f"time/{name}_seconds": value for name, value in zip(names, (wall, *phases, 0.5), strict=True)}
            for wall in WALLS
        ]
        lines = [json.dumps({"step": step} | row) for step, row in enumerate(rows)]
        (folder / "round" / exchange.METRICS_FILE).write_text("\n".join(lines) + "\n")
        return code

    monkeypatch.setattr(exchange, "exit_code", train)
    bench = bench_with(folder, room=None, bandwidth=1e9)
    bench.config.rollout.precision = "bfloat16"
    return exchange.whole_round(bench), bench


def test_the_rest_of_a_round_is_what_is_neither_sampling_nor_learning(tmp_path, monkeypatch):
    report, bench = ran(tmp_path, monkeypatch)
    shown = {fact.what: (fact.measured, fact.verdict) for fact in report.facts}
    assert shown == {
        "rounds finished": (6, "fine"),
        "seconds of a round": (11.0, "–"),
        "… without sampling, learning, refresh": (pytest.approx(1.1), "–"),
        "… of these sleeping and waking": (0.5, "–"),
        # 1.2 of 10 s and 3.2 of 12 s.
        "neither sampling nor learning": (pytest.approx((0.12 + 0.8 / 3) / 2), "look"),
    }
    # One second, one for the refresh, and its 20 · 2 bytes of each weight at 1 GB/s.
    assert report.facts[-1].high == pytest.approx((2.0 + 40 * bench.shape.parameters / 1e9) / 11.0)
    assert report.constants == {"round_overhead_seconds": pytest.approx(1.1)}
    assert ran(tmp_path, monkeypatch, phases=(7.0, 3.0, 0.0))[0].facts[-1].verdict == "fine"


def test_a_run_that_fails_has_finished_no_round(tmp_path, monkeypatch):
    [fact] = ran(tmp_path, monkeypatch, code=1)[0].facts
    assert (fact.measured, fact.verdict) == (0, "wrong")


def test_a_server_is_killed_once_and_between_the_halves_of_a_bucket():
    order = []
    sampler = Striking(SimpleNamespace(load_weights=order.extend), lambda: order.append("strike"))
    sampler.load_weights(["a", "b", "c"])
    sampler.load_weights(["d", "e"])
    assert order == ["a", "strike", "b", "c", "d", "e"]


def test_completions_that_a_lost_server_did_not_write_are_missed(tmp_path):
    bench = bench_with(tmp_path, learner=SimpleNamespace(step=lambda batch: None))
    bench.batch = lambda groups: None
    groups = [RolloutGroup(Prompt(None, (1,)), (None,) * count, 0, 0) for count in (4, 4, 4, 3)]
    servers = [SimpleNamespace(alive=True), SimpleNamespace(alive=False)]
    run = Run(bench, SimpleNamespace(generate=lambda *arguments: groups, servers=servers))
    run._sync = SimpleNamespace(refresh=lambda learner, sampler: None)
    assert (run.round(), run.missing) == (1, 1)


class Scripted:
    """After each refresh of this run, `counts` is the number of servers that hold the right weights."""

    def __init__(self, counts, missing):
        self.counts, self.missing, self.rounds, self.killed = counts, missing, -1, 0
        self.bench = SimpleNamespace(seconds=lambda action: action() and 2.0)
        self.sampler = SimpleNamespace(servers=[SimpleNamespace(process=SimpleNamespace(kill=None))])

    def refresh(self, sampler=None):
        self.rounds += 1
        return self.counts[min(self.rounds, len(self.counts) - 1)]

    round = refresh


FIRST, THEN, LAST = (
    "servers with the right weights",
    "… with the right weights then",
    "… with the right weights at last",
)


@pytest.mark.parametrize(
    ("counts", "missing", "failing"),
    [
        # With both, a round with both, one that loses one, one meanwhile, and two with both again.
        ([2, 2, 1, 1, 2], 0, {}),
        ([1, 2, 1, 2], 0, {FIRST: "wrong"}),
        ([2, 2, 2], 0, {THEN: "wrong"}),
        ([2, 2, 0], 0, {THEN: "wrong", "rounds until it is back": "wrong", LAST: "wrong"}),
        ([2, 2, 1], 0, {"seconds until it is back": "slow", LAST: "wrong"}),
        ([2, 2, 1, 2, 1], 0, {LAST: "wrong"}),
        ([2, 2, 1, 2], 1, {"completions lost": "wrong"}),
    ],
)
def test_the_row_of_a_lost_server_says_what_goes_wrong(counts, missing, failing, monkeypatch):
    monkeypatch.setattr(lost_server, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(lost_server, "LATEST", 0.0)
    monkeypatch.setattr(lost_server, "GRACE_SECONDS", 0.05)
    report = lost_server.lose(Scripted(counts, missing), 1.0)
    odd_verdicts = {fact.what: fact.verdict for fact in report.facts if fact.verdict not in ("fine", "–")}
    assert odd_verdicts == failing and len(report.facts) == 9


def test_servers_that_would_share_a_gpu_with_the_learner_are_not_started(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    [fact] = lost_server.servers(bench_with(tmp_path)).facts
    assert (fact.needs, fact.verdict) == ("needs 3 GPUs", "skipped")


def test_a_channel_whose_other_end_is_lost_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(link, "SECONDS", 0.3)
    monkeypatch.setattr(link, "sys", SimpleNamespace(executable="false", stderr=sys.stderr))
    bench = bench_with(tmp_path, device=torch.device("cpu"), bandwidth=1e9)
    assert [fact.verdict for fact in link.channel(bench).facts] == ["skipped", "slow", "wrong"]
