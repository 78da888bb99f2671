"""This package runs a job over several machines or processes: learners and servers start and end together.

config.hardware → seats, one for each machine → a shell (here, ssh, srun) starts each under a tether → one exit code

A seat is one machine's part of a run. A tether is the process that ends a seat when this process ends.
"""
