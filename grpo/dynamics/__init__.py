"""This package models the dynamics of a run and schedules its rounds from the model. It needs only numpy and scipy.

How much a group and a step teach:
sigma, difficulty        laws of σ; how hard the prompts are, estimated from counts
gain                     what a step gains, from its products with later gradients
step, group_size, budget aim and cost of a step; the best G and number of prompts; completions spread over prompts

Where a reward curve goes:
history                  counts → curve with standard errors
trend, forecast          the curve's trend, and the forecast that follows it

Choices for the next round:
scheduler                builds the configured scheduler, with limits and the entropy bonus around it
gates                    bounds of metrics, and what happens beyond them
adaptive, adaptive_state `dynamics=adaptive`, when it stops, and what it remembers
refresh_interval, guard  the choice of the refresh interval; the reaction to unstable training
losses                   whether a run that trains has lost what it could do
step_signs               whether steps harm, by their products with the next gradients
replay                   the decisions of a scheduler on the rounds of a finished run
"""
