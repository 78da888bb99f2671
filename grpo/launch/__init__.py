"""This package runs a job over several machines or processes: learners and servers start and end together.

config.hardware → seats, one for each machine → a shell (here, ssh, srun) starts each under a tether → one exit code

machines    names and addresses of the machines
membership  a machine's place among those that all start the same command, by their launcher's variables
meeting     where these machines meet, and how the first one leads them
seats       which command runs on which machine; a seat is one machine's part of a run
shells      starts a seat's command: here, by ssh or by srun; holds free ports for the run
torchrun    starts a machine's learner ranks
supervise   waits for all seats and ends them together

A tether (`grpo.host.tether`) is the process that ends a seat when this process ends.
"""
