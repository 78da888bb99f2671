"""The model of a run, and what follows from it. Pure numpy and scipy.

identity → difficulty      laws of σ; how hard the prompts are, from counts
oscillator → thresholds    the reduced-order model; how stale the sampler may be
laws → history → identify → forecast    which law a reward curve follows, and where it goes
group_size, refresh, guard → adaptive → scheduler    what the next round does
"""
