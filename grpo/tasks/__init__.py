"""This package turns data sets into prompts and grades the completions.

Its import must stay light, since every grading worker is a spawned process that imports the package too.

From data to prompts, in this order:
sources        problems from files, the hub or generators (arithmetic, procedural); `configs/task/` names the sets
columns        the cells of a row
problem_selection   which problems are taken, and which of them are held out
curriculum     in which order they are asked
prompt_stream  prompts without end: several sets in one stream, and which rank gets which
prompt_encoding   problems as token ids, by the chat template
usable         which problems can be learned from, and what is odd about them
task           all of this as the `Task` of the loop
solve_rates    pass rates that a data set brings along

From completions to rewards:
grader_pool, grading_worker   a pool of processes, and what each of them runs and leaves behind
rewards, own_rewards   built-in parts of a reward, and functions of the user's own
remote, judge  rewards from servers; a language model as the judge
extraction, verification   the answer in a completion; whether it is right
unit_tests     the tests of a row, and whether the program in a completion passes them
grading        grades → rewards

Before training:
early_checks, trial   quick checks of data and rewards; rewards of made-up completions
"""
