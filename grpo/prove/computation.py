"""This part compares attention and gradients on the device with float64 on the CPU."""

from itertools import accumulate

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from grpo.algorithm.logprobs import PLAIN
from grpo.learner.attention import NAME, TreeRow, tree_attention
from grpo.learner.group_logprobs import to_device
from grpo.learner.policy import Policy
from grpo.learner.proof import difference, example_row, own_results, packed_results
from grpo.learner.varlen import choose_kernel
from grpo.prove.bench import Bench
from grpo.prove.facts import Fact, Report
from grpo.prove.learning import NORM_BOUNDS
from grpo.prove.own_process import measured_apart
from grpo.types import MicroBatch, Tree

# This is the largest allowed relative error of outputs and gradients. Results are rounded, and sums are taken in
# float32.
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
# A loss that is the sum of the advantages times the log-probabilities, over the number of tokens.
PLAIN_LOSS = ("objective=clip", "objective.correction.level=none", "normalization=dr_grpo")
# The last tree is longer than what is computed under a mask.
TREES = (
    Tree(0, 37, (50, 0, 21)),
    Tree(108, 5, (64,)),
    Tree(177, 90, (1, 120, 33), shared=20),
    Tree(401, 600, (250, 1, 200), shared=20),
)
HEADS, SHARED, WIDTH, WINDOW = 8, 2, 64, 40


def attention(bench: Bench) -> Report:
    """Compares attention over packed prompt trees with each completion alone, in full and with a sliding window."""
    choose_kernel(bench.device)
    facts = []
    for dtype, bound in BOUNDS.items():
        for kind, window in (("plain", None), ("window", WINDOW)):
            error = attention_error(bench.device, dtype, window)
            name = str(dtype).removeprefix("torch.")
            facts.append(Fact("attention", f"{kind}, {name}: relative error", error, high=bound))
    return Report(facts)


def attention_error(device: torch.device, dtype: torch.dtype, window: int | None) -> float:
    """Returns the largest relative error, against float64, of the output and of the gradients of queries, keys and
    values. It is NaN where one of these holds a NaN."""
    generator, tokens = torch.Generator().manual_seed(0), TREES[-1].end
    tensors = [
        torch.randn(1, heads, tokens, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
        for heads in (HEADS, SHARED, SHARED, HEADS)
    ]
    *inputs, upstream = tensors
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    expected = _alone(*exact, window)
    expected.backward(upstream.double())
    ours = [tensor.to(device).requires_grad_() for tensor in inputs]
    row = TreeRow(TREES, dtype, device)
    output, _ = tree_attention(torch.nn.Module(), *ours, None, tree_row=row, sliding_window=window)
    output = output.transpose(1, 2)
    output.backward(upstream.to(device))
    pairs = [(output.detach(), expected.detach())]
    pairs += [(mine.grad, theirs.grad) for mine, theirs in zip(ours, exact, strict=True)]
    # Unlike Python's max, torch's returns NaN where any of the errors is NaN.
    return float(torch.stack([(mine.double().cpu() - theirs).norm() / theirs.norm() for mine, theirs in pairs]).max())


def _alone(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """Returns the output of softmax attention in which each completion is alone after its prompt."""
    key, value = (tensor.repeat_interleave(HEADS // SHARED, 1) for tensor in (key, value))
    pieces = []
    for tree in TREES:
        end_of_prompt = tree.start + tree.own_prompt_length
        own_prompt = torch.arange(tree.start, end_of_prompt)
        prompt = torch.cat([torch.arange(tree.shared), own_prompt])
        starts = accumulate(tree.branches, initial=end_of_prompt)
        runs = [
            own_prompt,
            *(
                torch.arange(start, start + num_tokens)
                for start, num_tokens in zip(starts, tree.branches, strict=False)
            ),
        ]
        for number, run in enumerate(runs):
            context = torch.cat([prompt, run]) if number else prompt
            distance = torch.arange(len(context) - len(run), len(context))[:, None] - torch.arange(len(context))
            hidden = (distance < 0) | (distance >= (window or len(context)))
            scores = query[0, :, run] @ key[0, :, context].transpose(1, 2) * WIDTH**-0.5
            pieces.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value[0, :, context])
    return torch.cat(pieces, dim=1)[None]


def gradients(bench: Bench) -> Report:
    """Compares a small model's log-probabilities and gradients on a packed row with those of each completion alone."""
    facts = []
    micro, sequences = example_row()
    for dtype, bound in BOUNDS.items():
        error = gradient_error(bench.device, dtype, micro, sequences)
        name = str(dtype).removeprefix("torch.")
        facts.append(Fact("learner", f"gradients, {name}: off float64 by", error, high=20 * bound))
    return Report(facts)


def whole_step(bench: Bench) -> Report:
    """Runs `step` on all GPUs, or on two ranks of a CPU, with a small model and without overrides of the loss."""
    num_ranks = torch.cuda.device_count() if bench.device.type == "cuda" else 2
    kept_overrides = [word for word in bench.overrides if word.startswith(("device=", "learner.precision="))]
    return measured_apart(Bench("tiny", bench.folder, kept_overrides), "step", "learner", "", PLAIN_LOSS, num_ranks)


def step(bench: Bench) -> Report:
    """Compares the gradient norm of an optimizer step of all ranks with that of the loss's definition. Collective."""
    norm, exact_norm = bench.learner.step(bench.batch(bench.made_up())).gradient_norm, expected_norm(bench)
    name = f"gradient of a step on {bench.learner.collective.world_size} ranks: off float64 by"
    bound = NORM_BOUNDS[bench.config.learner.precision]
    return Report([Fact("learner", name, abs(norm / exact_norm - 1), high=bound)])


def expected_norm(bench: Bench) -> float:
    """Returns the norm of the gradient of −Σ Â log π / tokens in float64, with each completion computed alone."""
    dtype = getattr(torch, bench.config.learner.precision)
    exact_model = AutoModelForCausalLM.from_pretrained(bench.path, dtype=dtype, attn_implementation="eager").double()
    groups = bench.made_up()
    sequences = [
        (list(group.prompt.token_ids), list(completion.token_ids))
        for group in groups
        for completion in group.completions
    ]
    advantages = torch.tensor([grade.reward for grade in bench.grades], dtype=torch.float64)
    advantages = (advantages - advantages.mean()).repeat(len(groups))
    lengths = torch.tensor([len(completion) for _, completion in sequences])
    coefficients = -advantages.repeat_interleave(lengths) / lengths.sum()
    _, gradients = own_results(exact_model, sequences, coefficients)
    return float(sum(gradient.square().sum() for gradient in gradients.values()) ** 0.5)


def gradient_error(
    device: torch.device, dtype: torch.dtype, micro: MicroBatch, sequences: list[tuple[list[int], list[int]]]
) -> float:
    """Returns the larger of two differences from float64: of log-probabilities (nats) and of gradients (relative).

    `sequences` are the (prompt, completion) token ids of the packed row `micro`, one after another.
    """
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exact_model = AutoModelForCausalLM.from_config(config, dtype=torch.float64, attn_implementation="eager")
        coefficients = torch.randn(len(micro.targets), dtype=torch.float64)
    # The weights are rounded to `dtype` first, so that rounding them makes no difference.
    exact_model.load_state_dict({name: tensor.to(dtype).double() for name, tensor in exact_model.state_dict().items()})
    expected = own_results(exact_model, sequences, coefficients)
    our_model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=NAME)
    our_model.load_state_dict(exact_model.state_dict())
    policy = Policy(our_model, len(micro.targets), PLAIN).to(device)
    logprobs, gradients = packed_results(policy, to_device(micro, device), coefficients.to(device))
    return difference(
        (logprobs.cpu(), {name: gradient.double().cpu() for name, gradient in gradients.items()}), expected
    )
