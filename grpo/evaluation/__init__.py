"""This package evaluates a policy on held-out problems (`held_out`), with intervals of pass rates (`pass_rates`)."""
