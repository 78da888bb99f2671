"""Sweeps: variants × seeds, each a run of its own.

words of the command line → cells → ledger → Hydra's launchers, a process for each cell → report
"""
