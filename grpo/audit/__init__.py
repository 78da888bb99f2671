"""This package says whether a run did what its configuration says.

reference   the specification of a step, in float64 and one sequence at a time
audit       all checks of a run, in their order
made_from   configuration, versions, device, files, weights and problems, beside the manifest
records     records beside their digests, and beside one another
replayed    the stream of prompts, and grades
recomputed  log-probabilities and losses, by the specification
lines       the lines of an audit
"""
