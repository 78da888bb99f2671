"""This package puts a training run together, runs it and records it.

From configuration to result:
early_checks  what can be checked before torch is imported
model_folder  finds the model, and refuses files that make another one
preparing     reads and checks all that a run needs, fits lengths and precision; a dry run ends there
preflight     what is refused once the model is known: its heads, its engine, functions of the loss
tables        prints placement, batches, memory and price
session       one training run, from the start of its engines to its report
resume        the checkpoint that a run continues from, or another run's that it begins with
parts, assembly     builds task and sampler; puts all parts together for the loop: pipeline, turns on a device, returns
padding       how prompts are batched where transformers samples them
scripted_episodes   episodes in which the model's turns are made up, to try them
measured_model      a model that is only sampled from, for `grpo eval` and `grpo solve-rates`

Around the loop's parts:
clocks        measures the seconds of each part, ends a process that hangs, and says what to change when memory is full

After each round:
observers     evaluate, save and diagnose
records       files, trackers and terminal
gates         the numbers that gates compare
outlook       what the run may still gain, by the hour and by its price
manifest      what a run was made from, and what it left
evaluating    evaluates on held-out problems

Files that are written:
checkpoints, checksums      checkpoints, and whether they are undamaged
upload                      copies of a run in an object store
export_source               the checkpoint to export
exporting, model_card       models that others load, with their cards
"""
