"""This module defines the findings of a diagnosis, and the thresholds by which they are made."""

from dataclasses import dataclass

NOTE, WARNING, CRITICAL = "note", "warning", "critical"
SEVERITIES = (NOTE, WARNING, CRITICAL)


# Meaning of each finding, for a reader who meets its name for the first time.
MEANINGS = {
    "no reward": "No completion has ever been rewarded, so there is nothing to learn from.",
    "nothing graded": "No completion could be graded, so nothing is known of the answers and nothing is learned.",
    "constant reward": "The reward is always the same number, so there is nothing to learn from.",
    "reward ended": "The log has no rewards from some step on, though the run goes on.",
    "getting worse": "The run solves fewer problems than at its beginning.",
    "nothing learned": "After many rounds the run is where it began.",
    "no gain lately": "The run has learned, but not over its last half.",
    "on the plateau": "Going on is unlikely to gain anything that is worth its cost.",
    "problems solved": "Nearly every answer is right, so hardly anything is left to learn here.",
    "prompts too easy": "Most groups of completions are all right, and such a group teaches nothing.",
    "prompts too hard": "Most answers, or most groups of them, are all wrong, and such a group teaches nothing.",
    "no signal": "Rewards within a group hardly differ any more, and learning lives on their differences.",
    "solved at once": "Answers became short and right within a few rounds, as they do when a reward is gamed.",
    "broken by a step": "One step destroyed what the model could do. A far too large learning rate does that.",
    "unstable": "The model has lost much of what it could do.",
    "setback": "The run lost much of what it had learned at one time, and has got back at least a part of it.",
    "wandering": "The pass rate falls and rises again and again, so that one fall more says little of the model.",
    "steps undo each other": "Steps go so far that the loss rises at their ends, as it does at too high a rate.",
    "underdamped": "The pass rate swings up and down, which often comes before it is lost.",
    "reward hacking or overfitting": "Training gets better and held-out problems do not.",
    "training above held-out": "Held-out problems are solved far less, so the model has memorized problems.",
    "reward part gamed": "Something is learned that pays, and it is not right answers.",
    "answers hardly count": "Nearly all of the reward is paid for something else than right answers.",
    "reward bought by length": "Longer completions earn more, whether or not they are right.",
    "length without reward": "Completions grow, and answers do not get better.",
    "shorter and worse": "Completions became much shorter, and fewer of them are right since then.",
    "truncated": "Many completions are cut off before they can answer.",
    "no answers found": "Hardly any completion holds an answer in the form that is looked for, so it counts as wrong.",
    "repetition": "Completions repeat themselves, which often comes before answers get worse.",
    "entropy collapse": "The model gives nearly the same completions each time, so it finds nothing new.",
    "entropy runs off": "The model's completions become ever more random, and answers do not get better.",
    "far from the reference": "The policy did not begin as the reference that it is held near.",
    "KL runs off": "The model moves away from the one it began as, faster than before.",
    "learning rate ended": "The schedule has taken the learning rate to nearly 0, so hardly anything is learned.",
    "slow adapters": "The learning rate is too small for LoRA's adapters, so the model stays nearly as it was.",
    "long warm-up": "The learning rate has not reached its full height yet, so little was learned so far.",
    "gradients not finite": "Some steps could not be taken, because their gradient was not a number.",
    "no gradient": "The optimizer gets gradients of exactly 0, so the weights do not change.",
    "gradient spikes": "Single steps have far larger gradients than their neighbours, and may undo what was learned.",
    "growing gradients": "Gradients get larger and larger, which often comes before training is lost.",
    "clipped low": "Much of each batch is clipped, so that the later steps of a round hardly learn.",
    "clipped high": "Much of each batch is clipped, so that the later steps of a round hardly learn.",
    "stale sampler": "The policy that is trained is too far from the one that wrote its samples.",
    "sampler mismatch": "Sampler and learner disagree about the same tokens under the same weights.",
    "rounds take longer": "Rounds get slower by more than their completions grow.",
    "no calls": "The model calls no tool, so it learns nothing about using one.",
    "tools given up": "The model called tools at first and calls them hardly any more.",
    "unreadable calls": "Many calls are not written in the form that is read, so no tool answers them.",
    "tools fail": "Most calls end in an error, so the model cannot learn what a tool is good for.",
    "out of turns": "Most episodes are over before the model has given an answer.",
    "episodes fail": "Nothing is learned from groups with an episode that failed, however good its others are.",
    "grading fails": "Some answers are never graded, so nothing can be learned from what they say.",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding is one problem of a run. `remedy` lists configuration overrides that help, or says what else helps."""

    name: str
    severity: str
    evidence: str
    remedy: str

    @property
    def meaning(self) -> str:
        """Returns the meaning of the finding, in a sentence."""
        return MEANINGS[self.name]


@dataclass(frozen=True, slots=True)
class DiagnosisRule:
    """A diagnosis rule holds the thresholds of all checks. Shares lie between 0 and 1."""

    silent: float = 0.65  # share of silent groups above which there are too many
    # Share of silent groups, and its rise, that are too much where the pass rate is not above `mastered`.
    much_silence: float = 0.45
    more_silence: float = 0.25
    mastered: float = 0.75  # pass rate above which silent groups are a sign of success
    # Share of all-correct groups among the silent ones, or pass rate on the plateau, above which prompts count as too
    # easy.
    easy: float = 0.5
    solved: float = 0.85  # pass rate above which low entropy and silent groups are signs of success, not of a problem
    finished: float = 0.95  # pass rate above which problems are solved, however few groups are silent
    hopeless: float = 0.05  # pass rate below which prompts are too hard, however few groups are silent
    flat: float = 0.08  # largest upper bound of a change of pass rate that may still count as no gain
    moved: float = 0.05  # least change of pass rate, or of a part of the reward, that counts as a change
    # Least held-out progress per training progress, least gain of pass rate per rise of a part of the reward, and least
    # share of the reward that right answers give.
    coupling: float = 0.25
    entropy_kept: float = 0.1  # least entropy, as a share of the entropy at the start
    # Factor and nats by which entropy may grow where answers do not get better.
    entropy_grown: float = 2.0
    more_entropy: float = 0.3
    clipped: float = 0.15  # largest share of tokens clipped on one side
    least_kl: float = 0.3  # KL to the reference, in nats per token, below which it never runs off
    kl_growth: float = 10.0  # factor over its own earlier median by which KL runs off
    much_kl: float = 1.0  # KL above which a KL that still rises is a finding
    giant_kl: float = 100.0  # KL of a single step that shows a jump of the policy; `giants` such steps are a finding
    longer: float = 0.3  # largest growth of completions, or of the seconds of a round, as a share of the first
    # Fall of the length, as a share of the length before, after which fewer right answers are a finding.
    shorter: float = 0.4
    # Share of completions or groups above which a few rounds are enough, if every round is above.
    nearly_all: float = 0.9
    truncated: float = 0.3  # largest share of truncated completions
    more_truncated: float = 0.15  # largest growth of the share of truncated completions
    repeated: float = 0.2  # largest share of completions that repeat themselves
    signal_kept: float = 0.15  # least standard deviation of rewards or advantages, as a share of that at the start
    bought: float = 0.6  # largest correlation of the changes of length and reward, where both rise
    mismatch: float = 0.1  # largest mean |Δ log-probability| between sampler and learner with the same weights, in nats
    ess: float = 0.8  # least effective share of samples under the ratios between the round's policies
    spike: float = 10.0  # a gradient norm above this many times the median of those around it is a spike
    spikes: float = 0.05  # largest share of steps that may be spikes
    # `giants` gradient norms above `giant` times that median are too many in any run.
    giant: float = 25.0
    giants: int = 3
    zeros: float = 0.5  # largest share of gradient norms that may be exactly 0
    growth: float = 4.0  # largest factor by which the gradient norm may grow
    rate_kept: float = 0.01  # least learning rate over the last rounds, as a share of the highest
    longest_warmup: int = 60  # number of rounds from which on a learning rate that has always risen is a finding
    skipped: float = 0.02  # largest mean number of steps per round that were skipped because of NaN or Inf
    apart: float = 0.1  # largest difference between the pass rates in training and on held-out problems
    no_calls: float = 0.98  # least share of episodes without a call that means none is ever made
    given_up: float = 0.25  # rise of that share, to `nearly_all`, from which on tools are given up
    unreadable: float = 0.2  # largest share of turns with calls that cannot be read
    failing_calls: float = 0.5  # largest share of calls that may end in an exception
    out_of_turns: float = 0.5  # largest share of episodes that may run out of turns
    failing_episodes: float = 0.05  # largest share of episodes that may fail
    ungraded: float = 0.02  # largest share of answers whose grading failed or timed out
    collapse: float = 0.1  # largest loss of pass rate against the run's best
    losing: float = 8.0  # weight of a fall (`losses.Fall`), with the cosines of steps, from which on it is a loss
    at_once: float = 0.3  # rise of the pass rate within a few rounds, to solved problems, that is seldom learned
    much_shorter: float = 0.25  # length, as a share of that before such a rise, below which the reward may be gamed
    ordinary: int = 3  # number of falls, each half as deep as the deepest, from which on a curve counts as wandering
    by_chance: float = 0.01  # probability that a run whose steps do not harm ever gets the finding that they do
    gain_left: float = 0.02  # a run is on its plateau when a gain of more than this until its end is unlikely
