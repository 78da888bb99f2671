"""These tests hold for any input: hypothesis draws a hundred of each kind, always the same ones."""

import json
from dataclasses import asdict

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from grpo.algorithm.balance import balanced, lay_out, send_back
from grpo.algorithm.packing import Branch, trees_of
from grpo.config import TrainConfig
from grpo.config.saved import from_dict
from grpo.tasks.prompt_stream import dealt
from grpo.telemetry.json_lines import JsonLines, read_metrics
from grpo.types import Completion
from tests.fakes import on_ranks

settings.register_profile("always the same", derandomize=True, deadline=None, database=None)
settings.load_profile("always the same")


def cost(before, tokens):
    return tokens * (1000.0 + before + tokens / 2)


def branch(length):
    return Branch(Completion((1,) * (length + 1), (0.0,) * (length + 1), "", False), 0.0, 0.0)


# The prompts of up to four ranks: the length of each, and those of its completions.
GROUP = st.tuples(st.integers(1, 200), st.lists(st.integers(1, 300), min_size=1, max_size=6))
RANKS = st.lists(st.lists(GROUP, max_size=5), min_size=1, max_size=4)


def trees(rank, layout="shared", row_tokens=10_000):
    return [
        tree
        for prompt, own in rank
        for tree in trees_of([((1,) * prompt, branch(length)) for length in own], layout, row_tokens)
    ]


def branches_of(trees):
    return sorted(id(own) for tree in trees for own in tree.branches)


@given(st.lists(st.floats(0, 1e6), max_size=60), st.integers(1, 9), st.integers(0, 1000))
def test_every_rank_gets_one_of_as_many_consecutive_prompts(lengths, ranks, first):
    ranks_of = dealt(lengths, ranks, first)
    for start in range(0, len(lengths), ranks):
        block = ranks_of[start : start + ranks]
        assert len({*block}) == len(block) and {*block} <= {*range(ranks)}


@given(RANKS)
def test_balanced_trees_hold_every_branch_once_and_values_come_home(ranks):
    ranks = [trees(rank) for rank in ranks]

    def action(collective):
        own = ranks[collective.rank]
        share = balanced(own, collective, cost)
        values = [tuple(id(each) for each in tree.branches) for tree in share.trees]
        return share.trees, send_back(own, share, values, collective)

    done = on_ranks(len(ranks), action)
    assert branches_of(tree for trees, _ in done for tree in trees) == branches_of(
        tree for rank in ranks for tree in rank
    )
    for own, (_, home) in zip(ranks, done, strict=True):
        assert home == [tuple(id(each) for each in tree.branches) for tree in own]


@given(RANKS, st.sampled_from(["shared", "one a row", "padded"]), st.integers(100, 2000))
def test_rows_hold_every_branch_once_within_their_limit_and_are_equally_many(ranks, layout, row_tokens):
    ranks = [trees(rank, layout, row_tokens) for rank in ranks]
    rows = on_ranks(len(ranks), lambda own: lay_out(ranks[own.rank], own, layout, row_tokens, cost)[0])
    assert len({len(of_rank) for of_rank in rows}) == 1
    for own, of_rank in zip(ranks, rows, strict=True):
        assert branches_of(tree for row in of_rank for tree in row) == branches_of(own)
        for row in of_rank:
            alone = len(row) == 1 and len(row[0].branches) == 1
            assert alone or sum(tree.length for tree in row) <= row_tokens


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


# A configuration takes a third of a second, so the first that fails is not made smaller.
@settings(max_examples=20, phases=[Phase.generate])
@given(TEXT, TEXT, st.dictionaries(TEXT.filter(bool), st.one_of(TEXT, st.integers(), st.booleans(), st.none())))
def test_a_saved_configuration_is_the_same_when_it_is_read_again(template, project, settings):
    """Texts may hold `${…}`, backslashes and anything else that OmegaConf would read as something."""
    config = TrainConfig()
    config.task.prompt.template = template + "${oc.env:HOME}\\\\${a}\\"
    config.tracking.project, config.rollout.engine_args = project, settings
    assert from_dict(json.loads(json.dumps(asdict(config)))) == config


@given(st.lists(st.dictionaries(TEXT.filter(lambda name: name != "step"), st.one_of(TEXT, st.integers())), min_size=1,
                max_size=6), st.data())  # fmt: skip
def test_a_file_of_rows_that_is_cut_at_any_byte_holds_its_whole_lines(tmp_path_factory, rows, data):
    path = tmp_path_factory.mktemp("rows") / "some.jsonl"
    lines = JsonLines(path)
    for step, row in enumerate(rows, 1):
        lines.write(row, step)
    lines.close()
    whole = path.read_bytes()
    kept = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:kept])
    ends = [end for end in range(1, len(whole) + 1) if whole[end - 1 : end] == b"\n"]
    # A last line that lacks its line feed alone is whole, too.
    count = sum(kept >= end - 1 for end in ends)
    assert read_metrics(path) == [{**row, "step": step} for step, row in enumerate(rows, 1)][:count]
