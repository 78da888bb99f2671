"""This package reports a run while it runs: metrics, trackers, timed phases, the terminal, memory and hardware.

Numbers:
metrics, breakdown    a round's statistics as named numbers; lengths by kind of completion
phases                seconds of each phase, and deadlines
energy                joules of GPUs and processors
hardware              peak memory; peak compute of GPUs
profiler              traces of chosen rounds

Where they go:
json_lines, completions     files of JSON lines; completions as rows
row_kinds             what the rows of a run's files may hold
trackers              Weights & Biases, TensorBoard, MLflow; a run goes on when one of them fails
console, notebook     the line of each round on the terminal; its row of a table below a notebook's cell
ending                which code ran, how the run ended, and where it was resumed
"""
