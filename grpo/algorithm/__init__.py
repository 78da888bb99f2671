"""This package holds the maths of training in pure torch.

The package reads no files and logs nothing. Ranks agree on batches through the `Collective` that they are given; the
loss itself makes no distributed call and never waits for the device.

Input of a step:
normalization   rewards → advantages: the dial
batches         groups of one round → batches of its optimizer steps
packing         groups → packed rows
balance         trees of all ranks → equal work for every rank, in equally many rows of equal work

shapes          names of the axes of tensors, which all signatures give

The loss of a row:
logprobs        hidden states → log-probabilities and entropies, in chunks
fused           a chunk of logits in few passes, by compiled functions
ratio           current and old log-probabilities → probability ratios
token_losses    ratios and advantages → loss of each token: the objectives by name
token_selection choice of tokens among all tokens of a step
aggregation     completion lengths → weight of each token
kl, correction  the two optional terms
loss            puts all of these together

Functions by name:
lookup          name in the configuration → function, built-in or the user's own
probe           tries a user's own function before anything starts
"""
