"""This module samples by transformers alone, on machines without vLLM.

It is slow. Its log-probabilities are those of the distribution that is sampled from, as vLLM's are.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessor, PreTrainedModel

from grpo.config import SamplingConfig, UserError
from grpo.config.parts import SamplerSettings
from grpo.host.signals import leave_if_urgent
from grpo.interfaces import Bucket, Draw, OnGroup
from grpo.models.files import ModelFiles
from grpo.rollout.engine_arguments import sample_seed
from grpo.rollout.turns import Turns
from grpo.types import Completion, Prompt, RolloutGroup
from grpo.types.weights import ADAPTERS, BASE, DOWN_SUFFIX, MERGED, UP_SUFFIX, adapted_weight
from grpo.weight_sync.checksum import checksums

PADDED, ALIKE, ALONE = "prompts of all lengths together", "prompts of one length together", "one completion at a time"
WAYS = (PADDED, ALIKE, ALONE)
"""These are the ways in which rows are sampled in batches, the quickest first. The padding of shorter prompts changes
what some models compute."""


class SeededSampling(LogitsProcessor):
    """Samples by the Gumbel-max trick, reproducibly row by row.

    With Gumbel noise from the row's own generator added, the largest logit is a draw from the softmax. So greedy
    decoding after this processor samples.

    `logprobs` collects log π of each token drawn, [rows] per step, before noise.
    """

    def __init__(self, temperature: float, seeds: Sequence[int]):
        self._temperature = temperature
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        leave_if_urgent()
        logprobs = torch.log_softmax(scores.float() / (self._temperature or 1.0), dim=-1)
        noisy = logprobs
        if self._temperature:
            width = scores.shape[-1]
            noise = torch.stack(
                [torch.empty(width).exponential_(generator=generator) for generator in self._generators]
            )
            noisy = logprobs - noise.to(logprobs.device).log()
        self.logprobs.append(logprobs.gather(-1, noisy.argmax(-1, keepdim=True)).squeeze(-1).cpu())
        return noisy


def _widen(head: torch.nn.Module) -> None:
    """Makes an output layer compute in float32, whatever the precision of its input and weight."""

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        bias = None if head.bias is None else head.bias.float()
        return torch.nn.functional.linear(hidden.float(), head.weight.float(), bias)

    head.forward = forward


def batches(lengths: Sequence[int], size: int, way: str) -> list[list[int]]:
    """Divides rows, whose prompts have these `lengths`, into batches of at most `size`, as one of `WAYS` says. Returns
    the rows' indices.

    >>> batches([5, 3, 5, 5], 2, PADDED), batches([5, 3, 5, 5], 2, ALIKE)
    ([[0, 1], [2, 3]], [[1], [0, 2], [3]])
    """
    indices = list(range(len(lengths)))
    if way == ALIKE:
        indices.sort(key=lambda index: lengths[index])
    alike = [list(rows) for _, rows in groupby(indices, key=lambda index: lengths[index])]
    pools = alike if way == ALIKE else [indices]
    size = 1 if way == ALONE else size
    return [pool[start : start + size] for pool in pools for start in range(0, len(pool), size)]


def continued(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    stop: Sequence[int],
    pad: int,
    processor: SeededSampling,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples a completion of each prompt in one batch, with shorter prompts padded on the left by token `pad`. Returns
    token ids and their log-probabilities, [rows, tokens] each. Tokens after a row's first stop token mean nothing."""
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    ids = [[pad] * count + list(prompt) for count, prompt in zip(padding, prompts, strict=True)]
    mask = [[0] * count + [1] * (longest - count) for count in padding]
    with torch.no_grad():
        output = model.generate(
            input_ids=torch.tensor(ids, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=list(stop) or None,
            pad_token_id=pad,
            logits_processor=[processor],
        )
    return output[:, longest:].cpu(), torch.stack(processor.logprobs, dim=1)


class TransformersSampler:
    """Implements `interfaces.Sampler` by `generate` of transformers."""

    def __init__(self, settings: SamplerSettings, files: ModelFiles, device: torch.device, way: str = ALIKE):
        """`way` is one of `WAYS`, by which the model's batches are exact (see `grpo.run.padding`)."""
        dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[settings.rollout.precision]
        # Torch's fused attention leaves out soft-caps (Gemma 2); eager attention is what the learner is proved against.
        exact = {"attn_implementation": "eager"}
        model = AutoModelForCausalLM.from_pretrained(files.path, dtype=dtype, trust_remote_code=files.trust, **exact)
        self._model = model.to(device).eval().requires_grad_(False)
        if settings.model.head_precision == "float32":
            _widen(self._model.get_output_embeddings())
        # The model's own defaults (a repetition penalty, say) would change the sampled distribution.
        self._model.generation_config = GenerationConfig()
        self._settings = settings
        # The adapters' halves by name, and the names of all tensors that the present refresh has sent.
        self._halves: dict[str, torch.Tensor] = {}
        self._sent: set[str] = set()
        self._has_base = False
        self._tokenizer = files.tokenizer
        self._way = way
        self._stop = files.stop_token_ids
        self.policy_version = 0

    def generate(self, draw: Draw, on_group: OnGroup | None = None) -> list[RolloutGroup]:
        prompts, sampling = draw.prompts, draw.sampling or self._settings.rollout.sampling
        if sampling.top_p < 1 or sampling.top_k or sampling.stop:
            raise UserError("rollout.engine=transformers has no top_p, top_k or stop strings: use rollout.engine=vllm")
        sample_indices = draw.samples
        rows = [(place, sample) for place, samples in enumerate(sample_indices) for sample in samples]
        lengths = [len(prompts[place].token_ids) for place, _ in rows]
        version = self.policy_version
        completions: dict[tuple[int, int], Completion] = {}
        groups: dict[int, RolloutGroup] = {}
        for batch in batches(lengths, self._settings.rollout.max_concurrent, self._way):
            asked = [rows[index] for index in batch]
            completed = self._complete([(prompts[place], sample) for place, sample in asked], sampling)
            completions |= zip(asked, completed, strict=True)
            for place in dict.fromkeys(place for place, _ in asked):
                own = [completions.get((place, sample)) for sample in sample_indices[place]]
                if None not in own:
                    groups[place] = RolloutGroup(prompts[place], tuple(own), version, version)
                    if on_group:
                        on_group(place, groups[place])
        return [groups[place] for place in range(len(prompts))]

    def serve(self, turns: Turns) -> None:
        while (new_turns := turns.take(wait=True)) is not None:
            lengths = [len(turn.prompt.token_ids) for turn in new_turns]
            for batch in batches(lengths, self._settings.rollout.max_concurrent, self._way):
                asked = [new_turns[index] for index in batch]
                # A row of fewer tokens is cut, since every row has random numbers of its own.
                longest = max((turn.sampling for turn in asked), key=lambda sampling: sampling.max_tokens)
                completed = self._complete([(turn.prompt, turn.sample) for turn in asked], longest)
                for turn, completion in zip(asked, completed, strict=True):
                    turn.completion.set_result(self._cut(completion, turn.sampling.max_tokens))

    def _cut(self, completion: Completion, length: int) -> Completion:
        if len(completion.token_ids) <= length:
            return completion
        tokens, logprobs = completion.token_ids[:length], completion.sampler_logprobs[:length]
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return Completion(tokens, logprobs, text, True, ((self.policy_version, length),))

    def _complete(self, rows: Sequence[tuple[Prompt, int]], sampling: SamplingConfig) -> list[Completion]:
        seeds = [sample_seed(self._settings.seed, p.prompt_id, sample, self.policy_version) for p, sample in rows]
        processor = SeededSampling(sampling.temperature, seeds)
        prompts = [prompt.token_ids for prompt, _ in rows]
        sampled = continued(self._model, prompts, sampling.max_tokens, self._stop, self._stop[0], processor)
        return [self._completion(tokens.tolist(), values.tolist()) for tokens, values in zip(*sampled, strict=True)]

    def _completion(self, tokens: list[int], logprobs: list[float]) -> Completion:
        ends = [position for position, token in enumerate(tokens) if token in self._stop]
        length = ends[0] + 1 if ends else len(tokens)
        token_ids = tuple(tokens[:length])
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return Completion(token_ids, tuple(logprobs[:length]), text, not ends, ((self.policy_version, length),))

    def begin_refresh(self) -> str:
        self._sent = set()
        if not self._settings.adapters:
            return MERGED
        return ADAPTERS if self._has_base else BASE

    def load_weights(self, bucket: Bucket) -> None:
        parameters = dict(self._model.named_parameters())
        for name, tensor in bucket:
            weight, suffix = adapted_weight(name)
            if not suffix:
                parameters[name].copy_(tensor)
            elif name in self._halves:
                self._halves[name].copy_(tensor)
            else:
                self._halves[name] = tensor.clone()
                if suffix == UP_SUFFIX:
                    self._adapt(weight)
            self._sent.add(name)

    def _adapt(self, weight: str) -> None:
        """Makes the layer with this weight add B·(A·x) to its output, as the learner's layer does."""
        down, up = self._halves[weight + DOWN_SUFFIX], self._halves[weight + UP_SUFFIX]

        def add(_: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
            return output + linear(linear(inputs[0], down), up)

        self._model.get_submodule(weight.removesuffix(".weight")).register_forward_hook(add)

    def finish_weights(self, policy_version: int) -> None:
        self.policy_version, self._has_base = policy_version, True

    def checksums(self) -> Sequence[Mapping[str, int]]:
        tensors = (*self._model.named_parameters(), *self._halves.items())
        return [checksums((name, tensor) for name, tensor in tensors if name in self._sent)]

    def cache_usage(self) -> dict[str, float]:
        return {}

    def sleep(self) -> None:
        """Does nothing: between two calls, the sampler holds nothing but its weights."""

    def wake(self) -> None:
        """Does nothing, see `sleep`."""

    def close(self) -> None:
        """Does nothing: no engine runs behind this sampler."""
