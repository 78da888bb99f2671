"""This package implements sweeps. A sweep runs every variant with every seed, and each such run is a cell.

arguments of the command line → cells → ledger → Hydra's launchers, one process per cell → report

cells           a preset and arguments → cells
ledger          keeps the state of each cell in files
cell_process    runs one cell in its own process
short_names     variants without what their names share
search          a sweep whose values Optuna chooses
"""
