"""This table names every number that a round logs, with its unit, its meaning and its names in other frameworks' logs.

Code names a metric by its constant here. The lines of a run, the charts and words of pages and the words of a diagnosis
come from this table. Names are `group/name`. A `_fraction` is in [0, 1].

Names in other frameworks' logs are patterns, read in these files of these versions. Our name ends with the part that a
group in a pattern matches.

trl        TRL 1.10: trl/trainer/grpo_trainer.py, GRPOTrainer's `_metrics`. Before 0.17: `completion_length`,
           `clip_ratio`, and parts of the reward as `rewards/x`
verl       verl 0.8: verl/trainer/ppo/metric_utils.py, ray_trainer.py; verl/workers/actor/dp_actor.py. Its fraction of
           tokens clipped on either side is read as the upper side's, on which most of the clipping happens
openrlhf   OpenRLHF 0.11: openrlhf/trainer/ppo_trainer.py, openrlhf/trainer/ray/ppo_actor.py
prime_rl   prime-rl 0.8: src/prime_rl/orchestrator/metrics.py, src/prime_rl/trainer/rl/train.py. [^/]+ after `all`
           matches an agent's name. `all` is over every completion, and `effective`, which is not read, over the
           completions that were trained on
slime      slime 0.3: slime/observability/rollout_metrics.py, slime/backends/megatron_utils/loss.py and model.py
rlprobe    rlprobe 0.1: rlprobe/schemas/__init__.py, a recorder of TRL's runs
minimind   what its train_grpo.py prints, as a public log of Coicozoi/minimind-from-scratch on GitHub has it

The Trainer of transformers, OpenRLHF and slime put `train/` before these names when they log to TensorBoard or Weights
& Biases.
"""

from typing import NamedTuple


class Metric(NamedTuple):
    """This row describes a metric.

    needed   the metric in words, as the thing that a log lacks
    panel    the title of the small chart that draws it and the label of its line there, as "title: label"
    peers    its names elsewhere, as "framework:pattern framework:pattern"
    """

    name: str
    unit: str
    meaning: str
    needed: str = ""
    panel: str = ""
    peers: str = ""

    @property
    def sentence(self) -> str:
        """Returns the meaning as a sentence."""
        return f"{self.meaning[0].upper()}{self.meaning[1:]}."


TABLE: dict[str, Metric] = {}
"""A name that ends with a slash stands for a family of metrics."""


def _metric(name: str, *facts: str, **named_facts: str) -> str:
    TABLE[name] = Metric(name, *facts, **named_facts)
    return name


def phase_seconds(phase: str) -> str:
    """Returns the metric of a phase's seconds.

    >>> phase_seconds("sample")
    'time/sample_seconds'
    """
    return f"{TIME}{phase}_seconds"


def phase_joules(phase: str) -> str:
    """Returns the metric of a phase's energy.

    >>> phase_joules("sample")
    'energy/sample_joules'
    """
    return f"{ENERGY}{phase}_joules"


OF_COMPLETIONS, OF_GROUPS, OF_TOKENS = (f"share of {units}" for units in ("completions", "groups", "tokens"))
NATS, TOKENS = "nats per token", "tokens"

# fmt: off

# Rewards and pass rates leave out groups that could not be graded, because a server did not answer or the problem's own
# answer cannot be read. Where problems have no answers and rewards are not only 0, 1 and −1, nothing says which
# completions are right, so no pass rates are logged.
REWARD = _metric("reward/mean", "reward", "mean reward of the round's completions", "mean rewards",
    peers="trl:reward verl:critic/rewards/mean openrlhf:rollout/reward_mean slime:rollout/raw_reward "
    "prime_rl:train/agg/all/[^/]+/reward/mean rlprobe:reward_mean "
    "skyrl:reward/avg_raw_reward others:Reward|rewards?[_/]mean|(?:mean|avg|average)[_/]rewards?")
REWARD_SQUARE = _metric("reward/square", "reward²", "mean square of the rewards")
REWARD_STD = _metric("reward/std", "reward", "standard deviation of the rewards", "spreads of rewards",
    peers="trl:reward_std openrlhf:rollout/reward_std prime_rl:train/agg/all/[^/]+/reward/std")
PART = _metric("reward/part/", "mean of the round", "this part of the reward, or a number that comes with it",
    peers="trl:rewards/([^/]+)/mean trl:rewards/(?!(?:std|min|max|median)$)([^/]+) "
    r"prime_rl:train/agg/all/[^/]+/rewards/([^/]+)/mean rlprobe:reward_component\.(.+)")
PASS_RATE = _metric("pass_rate", OF_COMPLETIONS, "share of the completions that are right (pass rate)", "pass rates",
    peers="verl:critic/score/mean others:(?i:acc|accuracy|score|pass@1|(?:solve|success|pass)_rate)")
ADVANTAGE_STD = _metric("advantages/std", "advantage", "standard deviation of the advantages", peers="rlprobe:adv_std")
ZERO_ADVANTAGES = _metric("advantages/zero_fraction", OF_COMPLETIONS, "share of advantages that are 0",
    peers="rlprobe:adv_zero_frac")
SOURCE = _metric("source/", "", "share, reward, pass rate, length, truncation and silence of a source of problems")

SILENT = _metric("groups/silent_fraction", OF_GROUPS, "share of groups with equal rewards, which teach nothing",
    "the share of silent groups", peers="trl:frac_reward_zero_std rlprobe:zero_variance_group_frac")
ALL_RIGHT = _metric("groups/all_correct_fraction", OF_GROUPS, "share of groups whose completions are all right",
    peers="prime_rl:train/agg/all/[^/]+/solved_all")
ALL_WRONG = _metric("groups/all_wrong_fraction", OF_GROUPS, "share of groups without a right completion",
    peers="prime_rl:train/agg/all/[^/]+/solved_none")
KEPT = _metric("groups/kept_fraction", OF_GROUPS, "share of the sampled groups that is learned from")
NUM_GROUPS = _metric("groups/num_sampled", "groups", "number of groups that were sampled, graded or not")
# From these `grpo dynamics replay` reconstructs what happened.
COUNTS = _metric("groups/counts", "groups", "list of [right completions, group size, number of such groups]")
FIRST_COUNTS = _metric("groups/first_counts", "groups", "the same of the first completions of groups")

LENGTH = _metric("completions/length_mean", TOKENS, "mean length of a completion, in tokens", "lengths",
    peers="trl:completions/mean_length trl:completion_length verl:response_length/mean rlprobe:completion_len_mean "
    "openrlhf:rollout/response_length_mean openrlhf:response_length slime:rollout/response_len/mean "
    "prime_rl:train/agg/all/[^/]+/num_output_tokens/mean skyrl:generate/avg_num_tokens "
    "others:(?:mean|avg|average)_(?:gen|completion|response|output)_(?:length|len|tokens) "
    "others:(?:completion|response|output)_(?:length|len)_mean")
LENGTH_P10 = _metric("completions/length_p10", TOKENS, "length that one completion in ten does not exceed")
LENGTH_P90 = _metric("completions/length_p90", TOKENS, "length that nine completions in ten do not exceed")
BY_PASS_RATE = _metric("completions/by_pass_rate/", "", "share, length and truncation, by how hard the prompt is")
TRUNCATED = _metric("completions/truncated_fraction", OF_COMPLETIONS, "share of completions cut off at the token limit",
    "the share of truncated completions", peers="trl:completions/clipped_ratio verl:response_length/clip_ratio "
    "openrlhf:rollout/truncated_rate slime:rollout/truncated_ratio prime_rl:train/agg/all/[^/]+/is_truncated/mean "
    "others:(?:truncated|truncation)_(?:rate|ratio|fraction|frac)")
NO_ANSWER = _metric("completions/no_answer_fraction", OF_COMPLETIONS, "share of completions without an answer",
    "the share of completions without an answer")
REPETITION = _metric("completions/repetition_fraction", OF_COMPLETIONS, "share of completions that repeat themselves",
    "the share of repetitive completions", peers="slime:rollout/repetition_frac rlprobe:repetition_rate")
FAILED = _metric("completions/failed_fraction", OF_COMPLETIONS, "share of completions that failed in grading",
    "counts of failed grading")
TIMED_OUT = _metric("completions/timed_out_fraction", OF_COMPLETIONS, "share of completions that timed out in grading")
UNPARSABLE = _metric("completions/unparsable_answer_fraction", OF_COMPLETIONS,
    "share of completions left out since their problem's own answer cannot be read")
UNANSWERED = _metric("completions/unanswered_fraction", OF_COMPLETIONS,
    "share of completions left out since a reward server did not answer for their groups")
RAISED = _metric("completions/raised_fraction", OF_COMPLETIONS,
    "share of completions left out since a reward function raised an exception in their groups, or an episode failed")
LATE = _metric("completions/late_fraction", OF_COMPLETIONS,
    "share of completions in groups that were given up at rollout.group_deadline_seconds")
TURNS = _metric("episodes/turns_mean", "turns", "mean number of the model's turns in an episode",
    panel="Turns of an episode: turns")
CALLS = _metric("episodes/calls_mean", "calls", "mean number of calls of tools in an episode",
    panel="Turns of an episode: calls of tools")
FAILED_CALLS = _metric("episodes/failed_calls_fraction", "share of calls", "share of calls that raised an exception",
    panel="Calls that fail: raise an exception")
UNREADABLE_CALLS = _metric("episodes/unreadable_fraction", "share of turns", "share of turns with unreadable calls",
    panel="Calls that fail: cannot be read")
WITHOUT_CALLS = _metric("episodes/without_calls_fraction", OF_COMPLETIONS,
    "share of episodes with tools that call none")
OBSERVED = _metric("episodes/observed_mean", TOKENS, "mean tokens in an episode that tools and environment wrote",
    panel="Tokens of tools")
EPISODE_SECONDS = _metric("episodes/seconds_mean", "seconds", "mean seconds of tools and environment in an episode",
    panel="Seconds of tools")
EPISODES_FAILED = _metric("episodes/failed_fraction", OF_COMPLETIONS,
    "share of episodes whose own code failed or took too long", panel="Episodes without an end: failed")
OUT_OF_TURNS = _metric("episodes/out_of_turns_fraction", OF_COMPLETIONS, "share of episodes that ran out of turns",
    panel="Episodes without an end: out of turns")
OUT_OF_ROOM = _metric("episodes/out_of_room_fraction", OF_COMPLETIONS, "share of episodes that filled model.max_length",
    panel="Episodes without an end: out of room")
BRANCHES = _metric("episodes/branches_mean", "histories", "mean number of histories in an episode; 1: one")
NUM_COMPLETIONS = _metric("completions/num_sampled", "completions", "number of completions sampled, graded or not")
PROMPT_LENGTH = _metric("prompts/length_mean", TOKENS, "mean length of a prompt, in tokens")

LOSS = _metric("policy/loss", "loss",
    "what a step lowers; about 0 unless lengths, a penalty or an old policy add to it", panel="Loss: loss")
REFERENCE_KL = _metric("policy/reference_kl", NATS,
    "distance from the reference model, in nats per token; 0: it still writes alike",
    "a KL to the reference", "KL to the reference: KL",
    "trl:kl verl:actor/kl_loss slime:kl_loss rlprobe:kl_mean minimind:kl_ref others:kl_divergence|mean_kl")
ENTROPY = _metric("policy/entropy", NATS,
    "how much the model tries out, in nats per token; 0: nothing; 0.7: a coin toss", "entropies",
    peers="trl:entropy verl:actor/entropy verl:actor/entropy_loss openrlhf:entropy_loss prime_rl:entropy/all/mean "
    "rlprobe:entropy_mean")
SAMPLER_ENTROPY = _metric("policy/sampler_entropy", NATS, "mean −log p of the sampled tokens, by the sampler")
# A ratio, and a weight of the mismatch below, is that of a token's whole completion where objective.ratio, or
# objective.correction.level, is of the sequence. With objective.old_logprobs=sampler the sampler's probabilities stand
# for those at the round's start.
OLD_KL = _metric("policy/old_kl", NATS, "KL from the policy at the round's start to the present one")
RATIO = _metric("policy/ratio", "ratio", "probability of a token now, divided by that at the round's start")
RATIO_SQUARED = _metric("policy/ratio_squared", "ratio²", "mean square of the ratio")
ESS = _metric("policy/ess_fraction", "share of samples", "share of samples that the ratio leaves effective",
    "effective sample sizes")

# Means over optimizer steps leave out steps that were skipped.
GRADIENT_NORM = _metric("learner/gradient_norm", "norm before clipping",
    "how strongly a step pulls at the weights; at 0 nothing is learned",
    "gradient norms", "Gradient norm: gradient norm",
    "trl:grad_norm verl:actor/grad_norm openrlhf:actor_grad_norm prime_rl:optim/grad_norm")
SKIPPED = _metric("learner/skipped_steps", "steps", "number of steps skipped since their gradient was not finite",
    peers="rlprobe:nan_count")
GAIN = _metric("step/gain", "loss", "how far the loss falls along the step before, at the slope of that step's end; "
    "of new samples, so not in second passes")
COSINE = _metric("step/cosine", "cosine with the next gradient",
    "above 0 new samples agree with each step, by the direction in which the loss falls; below 0 it went too far",
    "products of steps with the next gradients", "Do steps help?: cosine")
STEP_LENGTH = _metric("step/length", "norm", "length of the step, the norm of the change of the weights")
SIGNAL = _metric("step/signal", "share", "share of a gradient's squared norm that is signal and not noise")
NOISE_SCALE = _metric("step/noise_scale", "completions", "a gradient of this many completions would be half "
    "signal and half noise; measured over the last 50 rounds, and absent where their signal is unsure",
    panel="Gradient noise scale")
PATH_GAIN = _metric("path/gain", "loss", "gain of the path of the last steps, for one of them")
PATH_COSINE = _metric("path/cosine", "cosine", "cosine of that path and the next gradient")
PATH_STEPS = _metric("path/steps", "steps", "number of steps of that path")
LEARNING_RATE = _metric("learner/learning_rate", "learning rate", "how far a step goes, the learning rate",
    "learning rates", "Learning rate: learning rate",
    "trl:learning_rate verl:actor/lr openrlhf:actor_lr slime:lr-pg_0 prime_rl:optim/lr rlprobe:lr")
CLIP_LOW = _metric("policy/clip_low_fraction", OF_TOKENS,
    "tokens that became too unlikely are clipped, so they no longer move the model in their step", "clipped shares",
    "Clipped tokens: became too unlikely", "trl:clip_ratio/low_mean verl:actor/pg_clipfrac_lower")
CLIP_HIGH = _metric("policy/clip_high_fraction", OF_TOKENS, "tokens that became too likely are clipped too",
    panel="Clipped tokens: became too likely", peers="trl:clip_ratio/high_mean trl:clip_ratio verl:actor/pg_clipfrac "
    "openrlhf:ppo_clip_ratio slime:pg_clipfrac rlprobe:clip_fraction")

# These compare the sampler with the learner at the start of the round: the two engines, where the newest weights
# sampled the round. When it was sampled ahead (`pipeline`), they also include what was learned in between. With
# objective.old_logprobs=sampler only the round's first step is measured.
MISMATCH = "mismatch/"
GAP = _metric("mismatch/mean_abs", NATS,
    "how far sampler and learner differ about the same token, in nats",
    "the sampler's log-probabilities", "Gap between sampler and learner: gap",
    "trl:sampling/sampling_logp_difference/mean slime:train_rollout_logprob_abs_diff")
MISMATCH_KL = _metric("mismatch/kl", NATS, "KL from the sampler to the learner")
WEIGHT = _metric("mismatch/weight", "ratio", "probability of a token by the learner, divided by that by the sampler")
WEIGHT_SQUARED = _metric("mismatch/weight_squared", "ratio²", "mean square of the weight")
MISMATCH_ESS = _metric("mismatch/ess_fraction", "share of samples", "share of samples that the weight leaves effective")
ABOVE_CAP = _metric("correction/above_cap_fraction", OF_TOKENS, "tokens with a weight above the correction's cap")
BELOW_FLOOR = _metric("correction/below_floor_fraction", OF_TOKENS, "tokens with a weight below the correction's floor")
VETOED = _metric("correction/vetoed_fraction", OF_TOKENS, "tokens whose completion the correction vetoed")
STALENESS = _metric("staleness/mean", "steps", "optimizer steps since a group's oldest token was sampled")
MOST_STALENESS = _metric("staleness/max", "steps", "optimizer steps since the round's oldest token was sampled")

GROUP_SIZE = _metric("plan/group_size", "completions", "completions of a prompt, G")
INTERVAL = _metric("plan/refresh_interval", "steps", "optimizer steps of the round, τ")
PROMPTS = _metric("plan/prompts_per_step", "prompts", "prompts of an optimizer step")
RATE_FACTOR = _metric("plan/learning_rate_factor", "factor", "factor on the schedule's learning rate")
ENTROPY_COEFFICIENT = _metric("plan/entropy_coefficient", "weight", "weight of the entropy bonus")
REASON = _metric("plan/next_reason", "", "text that says why the next round's plan is what it is")
WENT_BACK = _metric("run/went_back", "", "1 for a round after which the run went back to an earlier policy")

# These are forecast every half minute, from the sixth round with a pass rate on (`grpo.run.outlook`).
EXPECTED_GAIN = _metric("forecast/gain", "pass rate", "expected gain of the pass rate from now to the last step")
GAIN_PER_HOUR = _metric("forecast/gain_per_hour", "pass rate per hour",
    "expected gain of the pass rate to the last step, divided by the hours until then",
    panel="Expected gain of an hour")
GAIN_PER_MONEY = _metric("forecast/gain_per_money", "pass rate per unit of money",
    "that gain by what these hours cost at hardware.price_per_hour")
ROUND_COST = _metric("cost/round", "money", "price of the round's seconds on all devices, at hardware.price_per_hour")

# When rounds are sampled ahead, sampling and grading run in parallel with the loop. Their seconds belong to the round
# whose tokens they made, so the phases of a round can add up to more than the round. Evaluation, saving, exporting and
# loading happen between two rounds. They are reported with the second round but are not part of its seconds. Work that
# they cause counts as theirs: where sampler and learner take turns on a GPU, a checkpoint's seconds include a refresh.
# "sleep" is the time in which an engine in the learner's process frees its GPU memory, and later takes back the memory
# of its weights. "sync" is the rest of a refresh, with the time to take back the memory of its KV cache.
TIME = _metric("time/", "seconds per round", "wall-clock seconds of a phase, averaged over ranks")
ROUND_SECONDS = _metric(phase_seconds("round"), "seconds per round", "wall-clock seconds of the round",
    "seconds of rounds", peers="trl:step_time verl:perf/time_per_step openrlhf:timing/step_total slime:perf/step_time "
    "rlprobe:step_time_s")
# Servers on other machines are in none of these numbers.
ENERGY = _metric("energy/", "joules", "energy of a phase on the learner's machines, as GPUs and processors count it")
ROUND_ENERGY = _metric(phase_joules("round"), "joules", "energy since the last round, with evaluations between them",
    panel="Energy of a round")
TOKEN_ENERGY = _metric("energy/joules_per_token", "joules per token",
    "energy since the last round, by the round's completion tokens")
SAMPLE_SPEED = _metric("throughput/sample_tokens_per_second", "tokens per second",
    "completion tokens by the seconds of sampling, on all processes together", panel="Speed: sampling")
LEARN_SPEED = _metric("throughput/learn_tokens_per_second", "tokens per second",
    "completion tokens by the seconds of learning, on all processes together", panel="Speed: learning")
# Phase → its speed.
SPEEDS = {"sample": SAMPLE_SPEED, "learn": LEARN_SPEED}
TFLOPS = _metric("throughput/learn_tflops", "TFLOP/s", "floating-point operations by the seconds of learning")
MFU = _metric("throughput/mfu", "share", "those divided by the peak of all devices together")
# The excess over 1 is how long the mean rank waits, relative to how long it computes. Under ZeRO 2 and 3, whose ranks
# wait for each other in every micro-batch, the busiest rank is that of each micro-batch.
IMBALANCE = _metric("throughput/imbalance", "ratio", "operations of the busiest rank by those of the mean, in steps")
LOGPROBS_IMBALANCE = _metric("throughput/logprobs_imbalance", "ratio", "the same in passes for log-probabilities")
SAMPLE_IMBALANCE = _metric("throughput/sample_imbalance", "ratio", "the same of the seconds of sampling")
CACHE_PEAK = _metric("rollout/cache_peak_fraction", "share of the cache in use", "fullest moment of the KV cache")
PREEMPTIONS = _metric("rollout/preemptions", "completions", "completions interrupted since the cache was full")
PREFIX_HITS = _metric("rollout/prefix_hit_fraction", OF_TOKENS, "tokens of prompts that were found in the prefix cache")
PEAK_RSS = _metric("memory/peak_rss_gib", "GiB",
    "the most resident memory since the start, of the process that needs most", panel="Memory: main memory")
PEAK_CUDA = _metric("memory/peak_cuda_gib", "GiB",
    "the most GPU memory that PyTorch's allocator held since the start, with its cache", panel="Memory: GPU")
PEAK_TENSORS = _metric("memory/peak_tensors_gib", "GiB",
    "the most GPU memory in tensors since the start; the rest that the allocator held was cache and gaps")
BY_CLOCK = ("forecast/", "throughput/", TIME, ENERGY, EPISODE_SECONDS)
"""Measured seconds are in these metrics, so two runs of one seed differ in them."""
EVALUATION = _metric("evaluation/", "", "a number of a held-out evaluation")
