"""The commands: `grpo NAME` calls `run` of the module with that name.

`train`, `serve`, `eval` and `solve_rates` are given a run's configuration, the others the words of the command line.
Each returns the exit code, and raises UserError for what its caller has to mend.
"""
