"""The papers' figures and numbers, computed by this framework's own functions: one module each.

identity     laws of σ, and the 6,000-prompt run                        arXiv:2607.00152
bandit       oscillation and the refresh-interval threshold             arXiv:2606.30789
invariance   what the group size changes of the mean curve, and of its noise
slow-start   inertia against gating
"""
