"""This package reproduces figures and numbers of two papers with this framework's own functions, one module per topic.

identity        laws of σ, and the run with 6,000 prompts                              arXiv:2607.00152
bandit          when training oscillates, and from which refresh interval it fails     arXiv:2606.30789
invariance      how the group size changes the mean curve and its noise                both
slow-start      whether a slow start comes from inertia or from gating                 both
plane           the two dials beside each other, which no paper prints                 both
deep-threshold  from which refresh interval a small transformer fails to learn         arXiv:2606.30789
"""
