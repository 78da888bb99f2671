"""This program makes two ranks share a vLLM engine, which runs beside them. test_shared_engine.py runs it by torchrun.

Usage: shared_engine_worker.py MODEL_DIRECTORY OUTPUT_FOLDER PYTHON. Rank 0 writes a JSON object of facts into the
folder. PYTHON is the engine's interpreter, see `tests.forked_servers`.
"""

import json
import os
import re
import signal
import sys
from pathlib import Path

from grpo.host import environment
from grpo.interfaces import Draw

environment.prepare()

import torch

from grpo.config import LimitsConfig, PromptConfig, SamplingConfig, TrainConfig
from grpo.config.folder import LOG_FOLDER
from grpo.config.parts import LearnerSettings, SamplerSettings
from grpo.episodes.gateway import Gateway
from grpo.episodes.processes import Processes
from grpo.episodes.sampler import EpisodeSampler, Stage
from grpo.episodes.template import ChatTemplate
from grpo.host.network import LOOPBACK
from grpo.learner.engine import init_distributed
from grpo.learner.learner import DeepSpeedLearner
from grpo.models.tiny import character_tokenizer
from grpo.rollout.checked_sampler import ReturningSampler
from grpo.run.parts import build_engine
from grpo.tasks.prompt_encoding import PromptEncoder
from grpo.types import Problem, Prompt
from grpo.weight_sync.refresh import CheckedSync, WeightSyncError
from grpo.weight_sync.shared_memory import SharedMemory
from tests.forked_servers import fork_servers
from tests.learner.models import files_of

DEVICE, MAX_LENGTH, SAMPLING = torch.device("cpu"), 128, SamplingConfig(max_tokens=12)


def gap(groups, logprobs):
    """Returns the largest difference between the engine's and the learner's log-probabilities, in nats."""
    return max(
        abs(theirs - ours)
        for group, own in zip(groups, logprobs, strict=True)
        for completion, scored in zip(group.completions, own, strict=True)
        for theirs, ours in zip(completion.sampler_logprobs, scored.tolist(), strict=True)
    )


def flipped(put):
    """Returns `SharedMemory.put`, but for one bit, in the sign of a number that this bucket has."""

    def wrong(memory, bucket):
        place = put(memory, bucket)
        memory._buffer[1] ^= 128
        return place

    return wrong


def kill_engine(output):
    """Kills the engine, whose process id is in the server's log."""
    [log] = Path(output, LOG_FOLDER).glob("server-*")
    os.kill(int(re.findall(r"EngineCore pid=(\d+)", log.read_text(errors="replace"))[-1]), signal.SIGKILL)


def play(engine, tokenizer, prompts):
    """Returns groups of two episodes for each prompt, of two short turns that are asked by OpenAI's interface."""
    encode = PromptEncoder(tokenizer, PromptConfig())
    template = ChatTemplate(tokenizer, encode.render, [tokenizer.eos_token_id])
    processes = Processes("tests.episodes.client_acts:asks_for_less", LimitsConfig())
    stage = Stage(
        processes, template, encode.messages, ("problem", "answer"), LimitsConfig(), MAX_LENGTH, Gateway(LOOPBACK)
    )
    episodes = EpisodeSampler(engine, len(tokenizer), {"": stage}, SAMPLING, seed=0)
    groups = episodes.generate(Draw(prompts, 2))
    episodes.close_episodes()
    return groups


def main(model, output, python):
    fork_servers(python)
    config = TrainConfig(device="cpu", output_dir=output)
    config.learner.precision = config.rollout.precision = "float32"
    config.model.max_length, config.rollout.kv_cache_gib, config.rollout.tensor_parallel = MAX_LENGTH, 0.0625, 2
    config.rollout.sampling, tokenizer = SAMPLING, character_tokenizer()
    # A quarter of it is what a bucket may take.
    config.rollout.servers.request_seconds = 100
    init_distributed(DEVICE, 300)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), DEVICE)
    ranks = learner.collective
    engine = build_engine(SamplerSettings.of(config), files_of(model, tokenizer), DEVICE, ranks)
    sync = CheckedSync(0.02)
    sampler = ReturningSampler(engine, lambda: sync.refresh(learner, sampler))
    prompts = [Prompt(Problem(f"p{number}", "q", "a"), (3, 4, 5 + number, 6)) for number in range(3)]
    mine, gaps = prompts[ranks.rank :: 2], []
    for _ in range(2):
        # Other weights, the same on both ranks.
        for parameter in learner.policy.parameters():
            parameter.data.mul_(1.1)
        sync.refresh(learner, sampler)
        groups = sampler.generate(Draw(mine, 4))
        gaps.append(gap(groups, learner.logprobs(groups)))
    own = [group.prompt.prompt_id for group in groups] == [prompt.prompt_id for prompt in mine]
    put, SharedMemory.put = SharedMemory.put, flipped(SharedMemory.put)
    try:
        sync.refresh(learner, sampler)
        refused = ""
    except WeightSyncError as error:
        refused = str(error)

    def put_and_kill(memory, bucket):
        """Kills the engine in the middle of a refresh."""
        SharedMemory.put = put
        if ranks.rank == 0:
            kill_engine(output)
        return put(memory, bucket)

    SharedMemory.put = put_and_kill
    sync.refresh(learner, sampler)
    again = sampler.generate(Draw(mine, 4))
    gaps.append(gap(again, learner.logprobs(again)))
    tokens = [[[c.token_ids for c in group.completions] for group in of_draw] for of_draw in (groups, again)]
    same = tokens[0] == tokens[1]
    facts = {"gaps": gaps, "own": own, "refused": refused, "same": same, "use": sampler.cache_usage()}
    episodes = play(sampler, tokenizer, mine)
    facts["gap_of_episodes"] = gap(episodes, learner.logprobs(episodes))
    facts["turns"] = [completion.episode.turns for group in episodes for completion in group.completions]
    facts = ranks.gather(facts)
    workers = [worker["seconds"] > 0 for worker in engine.ask_workers("processor_seconds")]
    facts[0]["workers"] = workers
    sampler.close()
    if ranks.rank == 0:
        Path(output, "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
