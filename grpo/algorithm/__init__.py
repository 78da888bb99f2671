"""This package holds the maths of training in pure torch.

The maths reads no config files, logs nothing, makes no distributed calls and never calls `.item()`.

normalization   rewards → advantages: the dial
ratio           current and old log-probabilities → probability ratios
objective       ratios and advantages → loss of each token
aggregation     completion lengths → weight of each token
kl, correction  the two optional terms
loss            the composition of these
logprobs        hidden states → log-probabilities and entropies, in chunks
packing         groups → packed rows
balance         trees of all ranks → equal work for every rank
layout          a rank's trees → as many rows as all ranks have, of equal work
batches         groups of one round → batches of its optimizer steps
"""
