"""A sweep runs every variant with every seed. Each such run is a cell.

arguments of the command line → cells → ledger → Hydra's launchers, one process per cell → report
"""
