"""A sweep runs every variant with every seed. Each such run is a cell.

arguments of the command line → cells → ledger → Hydra's launchers, one process per cell → report

cells           a preset and arguments → cells
ledger          the state of each cell, in files
cell_process    one cell in its own process
search          Optuna chooses the values
"""
