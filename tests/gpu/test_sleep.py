"""An engine that sleeps gives a GPU's memory back, and writes the same after it is woken and given its weights."""

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

GIB, CYCLES = 2**30, 20


def test_sleep_frees_cache_and_weights_and_graphs_write_the_same_after_each_of_twenty_cycles(tmp_path, alone):
    from benchmarks.small_models import tiny_tokenizer
    from grpo.config import SamplingConfig, TrainConfig
    from grpo.config.parts import LearnerSettings, SamplerSettings
    from grpo.interfaces import Draw
    from grpo.learner.learner import DeepSpeedLearner
    from grpo.run.parts import build_engine
    from grpo.types import Problem, Prompt
    from grpo.weight_sync.refresh import CheckedSync, Probe
    from tests.learner.models import files_of, tiny_llama

    config, device = TrainConfig(device="cuda", output_dir=str(tmp_path / "run")), torch.device("cuda", 0)
    config.learner.precision = config.rollout.precision = "bfloat16"
    config.model.max_length, config.rollout.gpu_memory_fraction = 64, 0.2
    config.rollout.sampling = SamplingConfig(max_tokens=12)
    model = tiny_llama(tmp_path)
    tiny_tokenizer().save_pretrained(model)
    learner = DeepSpeedLearner(LearnerSettings.of(config), files_of(model), device)
    sampler = build_engine(SamplerSettings.of(config), files_of(model, tiny_tokenizer()), device, learner.collective)
    prompts = [Prompt(Problem(f"p{first}", "q", "a"), (first, 4, 5, 6)) for first in range(3, 7)]
    # After each refresh it also compares the log-probabilities of eight completions that share batches.
    sync = CheckedSync(0.05, Probe(prompts, config.rollout.sampling, learner.collective))

    def written():
        """Returns completions that are written one at a time: what arrives together may share a batch or not, and
        kernels sum in an order that depends on it."""
        groups = [sampler.generate(Draw([prompt], 1)) for prompt in prompts]
        return [group.completions[0].token_ids for [group] in groups]

    sync.refresh(learner, sampler)
    before = written()
    for cycle in range(CYCLES):
        awake = torch.cuda.mem_get_info(device)[0]
        sampler.sleep()
        freed = torch.cuda.mem_get_info(device)[0] - awake
        assert freed > 0.1 * torch.cuda.get_device_properties(device).total_memory, f"{freed / GIB:.1f} GiB"
        sync.refresh(learner, sampler)
        assert written() == before, cycle
