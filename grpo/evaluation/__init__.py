"""Evaluation asks a policy held-out problems (`held_out`) and estimates pass rates with intervals (`pass_rates`)."""
