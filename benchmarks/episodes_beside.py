"""This program measures whether episodes wait for one another.

    python benchmarks/episodes_beside.py [EPISODES]

Each episode has three turns of the tiny model, and its own code sleeps for a second after each, without giving control
back. If episodes waited for one another, 64 of them would take 192 seconds longer than with code that does not sleep.
The program prints the seconds of both, and those of 64 single turns.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from grpo.host import environment

environment.prepare()


from grpo.config import LimitsConfig, PromptConfig, SamplingConfig, TrainConfig
from grpo.config.parts import SamplerSettings
from grpo.episodes.processes import Processes
from grpo.episodes.sampler import EpisodeSampler, Stage
from grpo.episodes.template import ChatTemplate
from grpo.interfaces import Draw
from grpo.models.files import ModelFiles
from grpo.models.tiny import build_tiny
from grpo.rollout.vllm_sampler import VllmSampler
from grpo.tasks.prompt_encoding import PromptEncoder
from grpo.types import Problem, Prompt

TURNS = 3
CODE = """
import time

async def act(chat, problem):
    messages = list(problem.messages)
    for turn in range({turns}):
        messages += [await chat(messages), {{"role": "user", "content": "On."}}]
        time.sleep({seconds})
    return 1.0
"""


def main(num_episodes: int) -> None:
    sampling = SamplingConfig(max_tokens=60)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_tiny(folder / "model", [("1 + 1 =", "2"), ("1 + 2 =", "3")])
        files = ModelFiles(folder / "model")
        config = TrainConfig()
        config.rollout.precision, config.model.max_length, config.rollout.kv_cache_gib = "float32", 256, 0.25
        config.rollout.sampling = sampling
        engine = VllmSampler(SamplerSettings.of(config), files)
        encode = PromptEncoder(files.tokenizer, PromptConfig())
        template = ChatTemplate(files.tokenizer, encode.render, files.stop_token_ids)
        problem = Problem("p", "1 + 1 =", "2")
        draw = Draw([Prompt(problem, encode(problem))], num_episodes)
        for _ in range(2):
            began = time.perf_counter()
            engine.generate(draw)
            print(f"{num_episodes} single turns: {time.perf_counter() - began:.1f} s", flush=True)
        for seconds in (0.0, 1.0):
            act = folder / f"act{seconds:g}.py"
            act.write_text(CODE.format(turns=TURNS, seconds=seconds))
            processes = Processes(f"{act}:act", LimitsConfig())
            stage = Stage(processes, template, encode.messages, ("problem", "answer"), LimitsConfig(), 256)
            sampler = EpisodeSampler(engine, len(files.tokenizer), {"": stage}, sampling, seed=0)
            began = time.perf_counter()
            [group] = sampler.generate(draw)
            took = time.perf_counter() - began
            turns = sum(completion.episode.turns for completion in group.completions) / num_episodes
            print(f"{num_episodes} episodes of {turns:.1f} turns that sleep {seconds:g} s: {took:.1f} s", flush=True)
            processes.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
