"""This module has functions that tests name by import path. Some fit, and each of the others has one fault."""

import torch


def soft_clip(tokens, settings):
    distance = tokens.logprobs - tokens.old_logprobs
    weight = (-distance.square() / settings.clip_high).exp().detach()
    return -weight * tokens.ratio * tokens.advantages


def mean_of_all(tokens, settings):
    return -tokens.ratio * (tokens.advantages - tokens.advantages.mean())


def scalar(tokens, settings):
    return -(tokens.ratio * tokens.advantages).mean()


def without_gradient(tokens, settings):
    return -tokens.ratio.detach() * tokens.advantages


def infinite(tokens, settings):
    return -tokens.ratio * tokens.advantages / 0.0


def broken(tokens, settings):
    return tokens.probabilities


def only_positive(rewards, step, settings):
    return (rewards - rewards.mean()).clamp(min=0)


def first_is_best(rewards, step, settings):
    return rewards - rewards[0]


def divided(rewards, step, settings):
    return (rewards - rewards.mean()) / rewards.std(correction=0)


def square_root(length, group_tokens, totals, constant_length):
    return 1 / (length**0.5 * totals.sequences)


def negative(length, group_tokens, totals, constant_length):
    return -1.0


def absolute(logprobs, reference_logprobs):
    return (logprobs - reference_logprobs).abs()


def batch_centered(logprobs, reference_logprobs):
    difference = logprobs - reference_logprobs
    return difference - difference.mean()


NUMBER = torch.pi
