"""This package says how a run would go: under other settings, or before it starts.

whatif      the run of a log under other settings
planning    group size, prompts, refresh interval and tokens of a run that has not started
own_law     a law of one's own, fitted to a reward curve
request     what a person asks of the first two
"""
