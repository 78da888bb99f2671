"""This package shows runs to people: curves as pictures, evaluations as tables, and comparisons as web pages.

One run:
run_report    the whole report at a run's end
run_page, curves, small_charts, verdict, summary   its page, charts, judgement, and evaluations before and after
run_facts     how it was started
course        how it ended, and where it was resumed

Several runs:
contrast      compares variants; yardstick: by pass@1, or by the mean reward
contrast_page, contrast_panels, contrast_tables   the page, charts and tables of a comparison

The dynamics of a run:
dynamics, dynamics_panels, dynamics_tables, standing   `grpo dynamics`: output, charts, tables, where a run stands
plan          `grpo dynamics plan`
whatif, whatif_page       `grpo dynamics whatif`

Other commands:
solve_rates, solve_rates_page   `grpo solve-rates`
trial         the table of `grpo check-reward`

What all pages share:
page, links, style, glossary     HTML; links between pages; colours and sheets; explained words
"""
