"""This package says whether a run did what its configuration says.

reference   the specification of a step, in float64 and one sequence at a time
audit       all checks of a run, in their order
starts      how the run was started, the first time and at every resumption
made_from   configuration, versions, device, files, weights and problems, beside the manifest
records     records beside their digests, and beside one another
completions metrics, prompts and samples, beside the completions
evaluations held-out evaluations, beside their problems
replayed    the stream of prompts, and grades
recomputed  log-probabilities and losses, by the specification; the model, beside its checkpoint
lines       the lines of an audit
"""
