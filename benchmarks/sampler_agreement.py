"""vLLM's log-probabilities of its own tokens beside the learner's, for random models of many architectures.

    python benchmarks/sampler_agreement.py OUTPUT.json [NAME …]

Each model of tests/learner/architectures.py is made with heads of 32 features (vLLM's CPU build wants them), sampled
from by the real engine in float32, and scored by the learner's policy; then it is refreshed with the same weights, and
with others. A row has the mean and largest |sampler − learner| of each, in nats, or why vLLM does not run the model.
What OUTPUT.json has is not done again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo import environment

environment.prepare()

# Experts' widths are multiples of 32: vLLM's CPU build fills others up, and does not take weights into them again.
WIDE = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64}
WIDE |= dict.fromkeys(("head_dim", "linear_key_head_dim", "linear_value_head_dim"), 32)


def measure(name: str) -> dict:
    """One row, in a process of its own: vLLM does not give back what it has taken."""
    from collections import Counter

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from grpo.algorithm.packing import Row, Seedling, pack
    from grpo.config import ModelConfig, SamplingConfig, TrainConfig
    from grpo.learner.loading import load_policy
    from grpo.learner.weights import weight_buckets
    from grpo.rollout.vllm_sampler import VllmSampler
    from grpo.types import Problem, Prompt
    from grpo.weight_sync.checksum import IN_ORDER, checksums
    from grpo.weight_sync.refresh import CheckedSync
    from tests.learner.architectures import ARCHITECTURES, SMALL
    from tests.learner.models import tiny_tokenizer

    model_type, special, _ = ARCHITECTURES[name]
    wide = {key: value for key, value in WIDE.items() if key in {**SMALL, **special}}
    config = AutoConfig.for_model(model_type, **{**SMALL, **special, **wide})
    folder = Path(tempfile.mkdtemp())
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder)

    settings = TrainConfig()
    settings.model = ModelConfig(path=str(folder), max_length=96)
    settings.rollout.precision = settings.learner.precision = "float32"
    settings.rollout.kv_cache_gib, settings.rollout.max_concurrent = 0.25, 16
    settings.rollout.sampling = SamplingConfig(max_tokens=40)
    sampler = VllmSampler(settings, folder, tokenizer, torch.device("cpu"))
    policy = load_policy(folder, settings.model, "float32", 512)
    prompts = [Prompt(Problem(f"p{i}", "", ""), tuple(range(3 + i, 15 + i))) for i in range(4)]

    class Learner:
        """What a refresh needs of a learner."""

        num_steps = 1

        def weight_buckets(self, form: str):
            return weight_buckets(policy, 2**24, torch.float32, form)

    def difference() -> list[float]:
        groups = sampler.generate(prompts, 4)
        gaps = []
        for group in groups:
            rows = tuple(Row(completion, 0.0, 0.0) for completion in group.completions)
            micro = pack([Seedling(group.prompt.token_ids, rows)])
            with torch.no_grad():
                gaps.append((policy(micro, 1.0)[0] - micro.sampler_logprobs).abs())
        whole = torch.cat(gaps)
        return [float(whole.mean()), float(whole.max())]

    row = {"way": "trees" if policy.in_trees else "one by one", "loaded": difference()}
    sync = CheckedSync(0.5)
    sync.refresh(Learner(), sampler)
    row["same weights sent"] = difference()
    [stored] = sampler.checksums()
    sent = Counter()
    for bucket in Learner().weight_buckets("merged"):
        sent.update(checksums(bucket))
    row["compared in order"] = (
        f"{sum(n in stored for n in sent if IN_ORDER in n)} of {sum(IN_ORDER in n for n in sent)}"
    )
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05 * parameter.std().nan_to_num(0.0))
    sync.refresh(Learner(), sampler)
    row["other weights sent"] = difference()
    return row


def main(output: str, *names: str) -> None:
    from tests.learner.architectures import ARCHITECTURES

    path = Path(output)
    rows = json.loads(path.read_text()) if path.exists() else {}
    for name in names or ARCHITECTURES:
        if name in rows:
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], capture_output=True, text=True, timeout=300, cwd=ROOT
        )
        found = [line for line in done.stdout.splitlines() if line.startswith("{")]
        errors = [line.strip() for line in done.stderr.splitlines() if "Error" in line]
        rows[name] = json.loads(found[-1]) if found else {"error": errors[-1][:300] if errors else "no text"}
        print(name, rows[name], flush=True)
        path.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        print(json.dumps(measure(sys.argv[2])), flush=True)
    else:
        main(*sys.argv[1:])
