"""This package holds one module for each command: `grpo NAME` calls `run` of the module with that name.

`run` takes a run's configuration in `train`, `serve`, `eval`, `solve_rates` and `check_reward`, and the words of the
command line in the others. It returns the exit code, and raises UserError for an error that the user can correct.
"""
