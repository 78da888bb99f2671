"""This package holds the maths of training in pure torch.

The maths reads no config files, logs nothing, makes no distributed calls and never calls `.item()`.

What a step learns from:
normalization   rewards → advantages: the dial
batches         groups of one round → batches of its optimizer steps
packing         groups → packed rows
balance         trees of all ranks → equal work for every rank
layout          a rank's trees → as many rows as all ranks have, of equal work

The loss of a row:
logprobs        hidden states → log-probabilities and entropies, in chunks
ratio           current and old log-probabilities → probability ratios
objective       ratios and advantages → loss of each token
selection       tokens that are chosen among all of a step
aggregation     completion lengths → weight of each token
kl, correction  the two optional terms
loss            the composition of these

Functions by name:
lookup          name in the configuration → function, built-in or the user's own
probe           tries a user's own function before anything starts
"""
