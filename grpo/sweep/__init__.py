"""This package implements sweeps. A sweep runs every variant with every seed, and each such run is a cell.

arguments of the command line → cells → ledger → a process for each cell → report

cells           a preset and arguments → cells
ledger          keeps the state of each cell in files
cell_process    runs cells in processes of their own, several side by side
short_names     variants without what their names share
"""
