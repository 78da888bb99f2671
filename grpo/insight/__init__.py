"""This package studies runs of any framework: their logs, forecasts, failures, and pages for people.

The trainer need not be installed for it, and it imports nothing that loads torch. In the trainer only `run` and
`commands` call it.

logs        metrics of this and of other frameworks → `RunLog`
diagnosis   what is wrong with a run, and what to change
plans       a run under other settings, and a run before it starts
pages       web pages, charts and tables
"""
