"""This package reads the logs of runs, whichever framework wrote them, into one form.

run_log       that form: series of numbers by step, and the curve of rewards
logs          this framework's runs; finished_runs loads several of them
foreign_logs, foreign_rows   logs of other frameworks; their files as rows
console_logs      what other frameworks print on the console
foreign_names     their names of steps, held-out scores and settings
foreign_files     TensorBoard's files and Parquet
foreign_columns   numbers of rows as columns; the last run of several
"""
