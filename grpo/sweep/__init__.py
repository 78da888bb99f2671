"""This package implements sweeps. A sweep runs every variant with every seed, and each such run is a cell.

arguments of the command line → cells → ledger → Hydra's launchers, one process per cell → report

cells           a preset and arguments → cells
ledger          keeps the state of each cell in files
cell_process    runs one cell in its own process
search          a sweep whose values Optuna chooses
"""
