"""Runs over several machines, or several processes of one: who learns, who serves, and an end for all of them.

config.hardware → seats, one a machine → a shell that starts each (here, ssh, srun), held by a tether → one exit code
"""
