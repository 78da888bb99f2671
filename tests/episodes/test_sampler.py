"""These tests play episodes on real engines, and compare their tokens with one forward pass over all of them."""

import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo.config import LimitsConfig, PromptConfig, SamplingConfig, TrainConfig
from grpo.config.parts import SamplerSettings
from grpo.episodes.gateway import Gateway
from grpo.episodes.processes import Processes
from grpo.episodes.recorder import Recorder
from grpo.episodes.sampler import EpisodeSampler, Stage
from grpo.episodes.template import ChatTemplate
from grpo.interfaces import Draw
from grpo.models.tiny import build_tiny, character_tokenizer
from grpo.tasks.prompt_encoding import PromptEncoder
from grpo.types import Problem, Prompt
from tests.learner.models import files_of

ACTS, CLIENT = "tests.episodes.acts", "tests.episodes.client_acts"
SAMPLING = SamplingConfig(temperature=1.0, max_tokens=40)
DEVICE = torch.device("cpu")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_tiny(folder, [("1 + 1 =", "2"), ("1 + 2 =", "3")], num_steps=30)
    return folder


@pytest.fixture(scope="module")
def engines(model):
    """Yields a function that builds each engine once."""
    config = TrainConfig()
    config.rollout.precision, config.model.max_length, config.rollout.kv_cache_gib = "float32", 512, 0.0625
    config.rollout.sampling = SAMPLING

    def transformers():
        from grpo.rollout.transformers_sampler import TransformersSampler

        return TransformersSampler(SamplerSettings.of(config), files_of(model, character_tokenizer()), DEVICE)

    def vllm():
        from grpo.rollout.vllm_sampler import VllmSampler

        return VllmSampler(SamplerSettings.of(config), files_of(model, character_tokenizer()))

    built = {}

    def engine(name):
        if name not in built:
            built[name] = {"transformers": transformers, "vllm": vllm}[name]()
        return built[name]

    yield engine
    for sampler in built.values():
        # vLLM keeps its groups of ranks until then, and tests after these end torch.distributed.
        sampler.close()


@pytest.fixture
def episodes(engines, request):
    """Returns a function that makes samplers of episodes. Their processes end with the test."""
    started = []

    def make(act, engine="transformers", max_length=512, most=0.0, **limits):
        tokenizer = character_tokenizer()
        encode = PromptEncoder(tokenizer, PromptConfig())
        template = ChatTemplate(tokenizer, encode.render, [tokenizer.eos_token_id])
        processes = Processes(act if ":" in act else f"{ACTS}:{act}", LimitsConfig())
        gateway = Gateway("127.0.0.1")
        stage = Stage(
            processes, template, encode.messages, ("problem", "answer"), LimitsConfig(**limits), max_length, gateway
        )
        sampler = EpisodeSampler(engines(engine), len(tokenizer), {"": stage}, SAMPLING, seed=0, group_seconds=most)
        started.append(sampler)
        return sampler

    yield make
    for sampler in started:
        # The engine serves further tests.
        sampler.close_episodes()


def prompts(count=2):
    encode = PromptEncoder(character_tokenizer(), PromptConfig())
    problems = [Problem(f"p{number}", f"{number} + 1 =", str(number + 1)) for number in range(count)]
    return [Prompt(problem, encode(problem)) for problem in problems]


def contexts(prompt, completion):
    """Yields all that stood before each token that the model wrote."""
    context = [*prompt.token_ids]
    for place, token in enumerate(completion.token_ids):
        for piece in completion.observed:
            if piece.at == place:
                context = [*context[: piece.keep], *piece.token_ids]
        yield context, token
        context = [*context, token]


def off_by(model, groups):
    """Returns how far log-probabilities of episodes are from a float64 pass over all that stood before each token."""
    exact = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    gaps = []
    for group in groups:
        for completion in group.completions:
            pairs = zip(contexts(group.prompt, completion), completion.sampler_logprobs, strict=True)
            for (context, token), logprob in pairs:
                with torch.no_grad():
                    logits = exact(torch.tensor([context])).logits[0, -1]
                gaps.append(abs(float(logits.log_softmax(-1)[token]) - logprob))
    return max(gaps)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
@pytest.mark.parametrize("act", ["three_turns", "rewrites", "beside", f"{CLIENT}:by_address"])
def test_episodes_have_the_log_probabilities_of_one_forward_pass(episodes, model, act, engine):
    groups = episodes(act, engine).generate(Draw(prompts(), 3))
    assert off_by(model, groups) < 1e-4
    facts = [completion.episode for group in groups for completion in group.completions]
    assert not any(fact.error for fact in facts)
    assert any(fact.turns > 1 for fact in facts)


def test_an_episode_is_one_completion_with_what_its_code_returned(episodes):
    [group] = episodes("three_turns").generate(Draw(prompts(1), 8))
    whole = [completion for completion in group.completions if not completion.truncated]
    assert whole and all(completion.episode.turns == 3 for completion in whole)
    assert {completion.episode.rewards["questions"] for completion in whole} == {3.0}
    assert not any(completion.episode.shown_tools for completion in whole)
    for completion in whole:
        tokenizer = character_tokenizer()
        ids = completion.whole
        text = tokenizer.decode(ids)
        assert text.count("<|eos|>") == 3
        between = [tokenizer.decode(piece.token_ids) for piece in completion.observed]
        assert between == ["<|user|>Go on (0).<|assistant|>", "<|user|>Go on (1).<|assistant|>"]
        assert [message["role"] for message in completion.episode.messages] == [
            "user",
            *["assistant", "user"] * 2,
            "assistant",
        ]
        assert completion.text == completion.episode.messages[-1]["content"]


def test_a_rewritten_history_is_a_branch_that_is_never_encoded_again(episodes):
    [group] = episodes("rewrites", turns=9).generate(Draw(prompts(1), 8))
    whole = [completion for completion in group.completions if not completion.truncated]
    assert {completion.episode.branches for completion in whole} == {2}
    for completion in whole:
        branches = completion.branches(group.prompt.token_ids)
        assert sum(len(branch.token_ids) for _, branch in branches) == len(completion.token_ids)
        # The last turn goes on where the first two ended, so the rewritten turn stands behind it.
        assert character_tokenizer().decode(branches[0][1].whole).endswith("<|eos|>")
        assert "<|user|>Last.<|assistant|>" in character_tokenizer().decode(branches[0][1].whole)


def test_messages_of_the_model_are_known_from_those_of_its_agent(episodes):
    [group] = episodes("speaks_for_the_model", turns=9).generate(Draw(prompts(1), 2))
    for facts in (completion.episode for completion in group.completions if not completion.truncated):
        assert [message["role"] for message in facts.messages] == ["assistant", "user", "assistant"]
        assert (facts.written, facts.turns, facts.branches) == ((2,), 2, 2)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_episodes_are_the_same_in_a_run_repeated(episodes, engine):
    first, second = (episodes("three_turns", engine).generate(Draw(prompts(), 2)) for _ in range(2))
    assert [[c.token_ids for c in group.completions] for group in first] == [
        [c.token_ids for c in group.completions] for group in second
    ]


def test_turns_that_are_asked_at_once_are_the_same_in_whatever_order_they_come(episodes, monkeypatch):
    def played():
        [group] = episodes("four_at_once").generate(Draw(prompts(1), 8))
        tokens = [
            sorted((tuple(before), token) for before, token in contexts(group.prompt, c)) for c in group.completions
        ]
        return tokens, [(c.text, c.episode.messages) for c in group.completions]

    def late(recorder, messages, tools):
        time.sleep(0.1 * (3 - int(messages[0]["content"])))
        return place(recorder, messages, tools)

    in_order, place = played(), Recorder.place
    monkeypatch.setattr(Recorder, "place", late)
    assert played() == in_order


def test_limits_of_turns_and_tokens_end_an_episode_and_cut_it_off(episodes):
    [group] = episodes("three_turns", turns=2).generate(Draw(prompts(1), 8))
    ended = {completion.episode.ended for completion in group.completions}
    assert ended <= {"turns", "tokens"} and "turns" in ended
    assert all(completion.truncated for completion in group.completions)
    assert all(len(completion.token_ids) <= SAMPLING.max_tokens for completion in group.completions)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        ("raises", "KeyError: 'gone' (line N of acts.py)"),
        ("hangs", "it took longer than task.limits.seconds=1"),
        ("ends", "its process ended"),
        ("silent", "it ended without a turn of the model, as where an await lacks before chat(…)"),
        ("half_a_character", "ValueError: \ufffd (line N of acts.py)"),
    ],
)
def test_an_episode_that_fails_says_why_and_the_others_go_on(episodes, act, error):
    groups = episodes(act, seconds=1.0).generate(Draw(prompts(), 2))
    errors = {completion.episode.error for group in groups for completion in group.completions}
    assert {re.sub(r"line \d+", "line N", said) for said in errors} == {error}


def test_a_chat_takes_no_sampling_of_its_own_and_an_await_that_lacks_is_named(episodes):
    for act, said in {"cooler": "temperature is for rollout.samp", "unawaited": "write await before chat"}.items():
        [group] = episodes(act).generate(Draw(prompts(1), 2))
        assert said in group.completions[0].episode.error


def test_the_chance_of_an_episode_depends_on_the_whole_of_its_name(episodes):
    drawn = []
    for seed in (0, 1):
        sampler = episodes("draws")
        sampler._seed = seed
        named = [replace(prompt, problem=replace(prompt.problem, problem_id=f"prob-{place}23456"))
                 for place, prompt in enumerate(prompts(4))]  # fmt: skip
        groups = sampler.generate(Draw(named, 2))
        drawn += [completion.episode.rewards["reward"] for group in groups for completion in group.completions]
    assert len({*drawn}) == 16


def test_a_turn_that_its_agent_gives_up_holds_up_no_later_one(episodes):
    [group] = episodes("loses_patience", seconds=20.0).generate(Draw(prompts(1), 4))
    assert {completion.episode.error for completion in group.completions} == {""}


def test_an_episode_that_outstays_its_last_turn_is_cut_off_and_spoils_nothing(episodes):
    [group] = episodes("outstays", turns=1, seconds=5.0).generate(Draw(prompts(1), 2))
    assert {(completion.episode.error, completion.truncated) for completion in group.completions} == {("", True)}


def test_an_agent_that_asks_without_end_is_cut_off_before_its_time_is_over(episodes, monkeypatch):
    placed, place = [], Recorder.place
    monkeypatch.setattr(Recorder, "place", lambda *arguments: placed.append(1) or place(*arguments))
    [group] = episodes("asks_without_end", turns=2, seconds=600.0).generate(Draw(prompts(1), 2))
    facts = [completion.episode for completion in group.completions]
    assert {fact.error for fact in facts} == {""} and {fact.ended for fact in facts} <= {"turns", "tokens"}
    assert len(placed) == sum(fact.turns for fact in facts)


def test_turns_that_are_asked_at_once_are_drawn_apart(episodes):
    [group] = episodes("twice").generate(Draw(prompts(1), 8))
    assert {completion.episode.branches for completion in group.completions} == {2}
    pairs = [[branch.token_ids for _, branch in c.branches(group.prompt.token_ids)] for c in group.completions]
    assert any(first != second for first, second in pairs)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_an_episode_may_end_while_the_model_still_writes(episodes, engine):
    sampler = episodes("leaves", engine)
    for _ in range(2):
        groups = sampler.generate(Draw(prompts(), 4))
        assert [len(group.completions) for group in groups] == [4, 4]


def test_an_episode_that_fails_may_count_as_cut_off(episodes):
    [group] = episodes("hangs", seconds=1.0, failed="truncate").generate(Draw(prompts(1), 2))
    assert {(completion.episode.ended, completion.episode.error) for completion in group.completions} == {
        ("seconds", "")
    }
    assert all(completion.truncated for completion in group.completions)


def test_a_program_that_uses_openais_client_has_its_exact_tokens_and_rewards(episodes, caplog):
    [group] = episodes(f"{CLIENT}:by_address").generate(Draw(prompts(1), 8))
    assert {completion.episode.error for completion in group.completions} == {""}
    whole = [completion for completion in group.completions if not completion.truncated]
    for completion in whole:
        [between] = completion.observed
        assert character_tokenizer().decode(between.token_ids) == "<|user|>More.<|assistant|>"
        rewards = completion.episode.rewards
        assert rewards["length"] == len(completion.text) and rewards["ended"] == 1.0
        assert rewards["used"] == len(completion.token_ids) - between.at
    assert whole
    assert [record.getMessage() for record in caplog.records if "temperature" in record.getMessage()] == [
        "an episode's program asks for its own temperature: the run's configuration holds instead"
    ]


def test_requests_that_no_turn_fulfils_are_refused_as_openais_clients_expect(episodes):
    [group] = episodes(f"{CLIENT}:asks_oddly", memory_gib=4.0).generate(Draw(prompts(1), 1))
    assert (group.completions[0].episode.error, group.completions[0].episode.rewards) == ("", {"reward": 3.0})


def test_a_program_of_any_kind_is_an_episode(episodes):
    agent = f"{sys.executable} {Path(__file__).with_name('agent.py')}"
    [group] = episodes(f"program: {agent} 2").generate(Draw(prompts(1), 8))
    assert {completion.episode.error for completion in group.completions} == {""}
    whole = [completion.episode for completion in group.completions if not completion.truncated]
    assert whole and all(facts.rewards == {"reward": 0.5, "messages": 5.0} for facts in whole)
    assert {facts.turns for facts in whole} == {2}
    assert {completion.episode.ended for completion in group.completions} <= {"", "tokens"}


def test_a_program_ends_though_it_leaves_another_behind(episodes):
    [group] = episodes("program: sh -c 'sleep 300 & echo 1'", seconds=20.0).generate(Draw(prompts(1), 1))
    # It has asked for no turn.
    assert group.completions[0].episode.error == "it ended without a turn of the model"
    assert group.completions[0].episode.rewards == {"reward": 1.0}


def test_a_program_that_fails_says_how(episodes):
    [group] = episodes(f"program: {sys.executable} -c 'raise ValueError(7)'").generate(Draw(prompts(1), 2))
    assert {completion.episode.error for completion in group.completions} == {
        f"RuntimeError: {sys.executable} ended with exit code 1: ValueError: 7"
    }


def test_a_turn_that_its_agent_cuts_off_does_not_end_the_episode(episodes):
    [group] = episodes(f"{CLIENT}:asks_for_less").generate(Draw(prompts(1), 8))
    assert {(completion.episode.error, completion.episode.ended) for completion in group.completions} == {("", "")}
    assert {completion.episode.turns for completion in group.completions} == {2}
    assert max(len(completion.token_ids) for completion in group.completions) == 6


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (f"{CLIENT}:wants_two", "n=2 is for the run to say, and for no request: leave it out"),
        (f"{CLIENT}:wants_a_form", "guided_regex='a+' is for the run to say, and for no request: leave it out"),
        ("names_an_answer_oddly", "message 2 has a tool_call_id that is no text"),
        (f"{CLIENT}:asks_for_what_nobody_knows", "'depth' is no word of this address: leave it out"),
        (f"{CLIENT}:describes_a_tool_oddly", "the parameters of the tool f must be a JSON schema of an object"),
        ("says_bytes", "TypeError: Object of type bytes is not JSON serializable"),
        ("says_it_deeply", "Recursion"),
        ("chats_elsewhere", "chat belongs to the event loop that the episode runs in: await it there"),
        (f"{CLIENT}:brings_tools", "shows no tools to the model"),
        (f"{CLIENT}:answers_otherwise", "the policy answers POST /episode/ID/v1/chat/completions, not POST"),
        (f"{CLIENT}:says_it_packed", "the request has Content-Encoding 'gzip': send plain JSON"),
        ("says_nonsense", "message 0 must be a mapping with a role"),
        ("shows_pictures", "message 0 has image_url in its content, and the policy reads text alone"),
    ],
)
def test_a_request_that_cannot_be_fulfilled_spoils_its_episode_alone(episodes, act, error):
    [group] = episodes(act).generate(Draw(prompts(1), 2))
    assert all(error in completion.episode.error for completion in group.completions), group.completions[0].episode


def test_groups_are_passed_on_as_soon_as_they_are_complete(episodes):
    arrived = []
    groups = episodes("three_turns").generate(Draw(prompts(3), 2), lambda place, group: arrived.append((place, group)))
    assert sorted(place for place, _ in arrived) == [0, 1, 2]
    assert [group for _, group in sorted(arrived, key=lambda pair: pair[0])] == groups


def test_a_group_that_takes_too_long_is_given_up_and_the_others_are_whole(episodes):
    slow, quick = episodes("first_hangs", most=2.0).generate(Draw(prompts(), 2))
    assert [completion.late for completion in slow.completions + quick.completions] == [True, True, False, False]
    assert [completion.episode.turns for completion in slow.completions + quick.completions] == [1, 1, 1, 1]


def test_a_probe_is_a_single_turn(episodes):
    [group] = episodes("three_turns").generate(Draw(prompts(1), 2, single_turn=True))
    assert [completion.episode for completion in group.completions] == [None, None]


@pytest.mark.parametrize(("act", "opening"), [("three_turns", "9 tokens"), ("opens_long", "far more tokens")])
def test_a_conversation_that_opens_without_room_for_the_model_fails_alone(episodes, act, opening):
    [group] = episodes(act, max_length=9).generate(Draw(prompts(1), 1))
    assert group.completions[0].episode.error == (
        f"the conversation opens with {opening}, tools included, and model.max_length=9 leaves none for the model: "
        "raise it"
    )


@pytest.mark.parametrize("act", ["goes_on_long", "goes_on_far_too_long"])
def test_an_episode_whose_agent_fills_the_models_length_is_cut_off_there(episodes, act):
    [group] = episodes(act, max_length=64).generate(Draw(prompts(1), 2))
    facts = [completion.episode for completion in group.completions if completion.episode.turns]
    assert {(fact.ended, fact.error, fact.turns) for fact in facts} == {("room", "", 1)}


def test_a_turn_that_fills_the_models_length_leaves_no_room(episodes):
    [group] = episodes("three_turns", turns=1).generate(Draw(prompts(1), 1))
    opening = len(group.prompt.token_ids)
    [group] = episodes("three_turns", max_length=opening + 2, turns=8).generate(Draw(prompts(1), 8))
    filled = [completion for completion in group.completions if len(completion.token_ids) == 2]
    assert filled and {completion.episode.ended for completion in filled} <= {"room", ""}
    assert "room" in {completion.episode.ended for completion in filled}


def test_an_agent_that_shortens_a_history_that_became_too_long_goes_on(episodes):
    [group] = episodes("shortens", max_length=64).generate(Draw(prompts(1), 2))
    facts = [completion.episode for completion in group.completions]
    assert {(fact.ended, fact.error, fact.turns, fact.branches) for fact in facts} == {("", "", 2, 2)}


def test_turns_that_are_asked_at_once_are_no_more_than_the_limit(episodes, monkeypatch):
    place = Recorder.place

    def slow(*arguments):
        time.sleep(0.2)
        return place(*arguments)

    monkeypatch.setattr(Recorder, "place", slow)
    [group] = episodes("four_at_once", turns=2).generate(Draw(prompts(1), 2))
    assert {completion.episode.turns <= 2 for completion in group.completions} == {True}
    assert {completion.episode.ended for completion in group.completions} <= {"turns", "tokens"}


def test_turns_that_an_agent_has_given_up_are_no_part_of_its_episode(episodes):
    [group] = episodes(f"{CLIENT}:gives_up_turns", turns=2).generate(Draw(prompts(1), 2))
    for completion in group.completions:
        facts = completion.episode
        assert (facts.error, facts.ended, facts.rewards["reward"]) == ("", "", 1.0)
        assert facts.turns <= 2 and facts.branches <= 2
