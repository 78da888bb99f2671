"""This room proves an installation: part by part, it measures whether computations are right and how fast they are.

The parts (`grpo prove part=…`):
computation   attention and gradients against float64 (`attention`, `learner`)
learning      speed and memory of optimizer steps (`learner`)
exchange      refreshes, checksums and a whole run (`sync`, `round`)
link, far_end       the weight channel, and the program at its other end (`sync`)
lost_server   a server killed in the middle of a weight transfer (`servers`)
sampling      speed of the sampler (`sampler`)
determinism   whether the same rounds have the same bits (`determinism`)

Shared by these:
bench, sizes  a model of random weights with the engines that run it and the memory that it takes; its possible sizes
roofline      the least time of a micro-batch on a GPU, counted without one
facts         measured numbers with their expected bounds
own_process, worker   measurements in separate processes

After these:
record        `prove.json`, and the machine's constants in it
settings      the settings that the machine asks for
"""
