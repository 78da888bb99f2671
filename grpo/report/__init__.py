"""This package reports runs to people: curves as pictures, evaluations as tables, and comparisons as web pages.

One run:
run_report    the whole report at a run's end
run_page, curves, small_charts, verdict, summary   its page, charts, judgement, and evaluations before and after
run_facts     how it was started
course        how it ended, and where it was resumed

Several runs:
finished_runs, contrast   loads runs; compares variants
yardstick     what they are compared by: pass@1, or the mean reward
contrast_page, contrast_panels, contrast_tables   the page, charts and tables of a comparison

The dynamics of a run:
logs          a run's log → `RunLog`; foreign_logs, foreign_names and foreign_rows read other frameworks' logs
foreign_columns   numbers of rows as columns; the last run of several
foreign_words advice in the words of the framework that wrote a log
dynamics, dynamics_panels, dynamics_tables, standing   `grpo dynamics`: output, charts, tables, where a run stands
plan          `grpo dynamics plan`
whatif, whatif_page       `grpo dynamics whatif`

Other commands:
solve_rates, solve_rates_page   `grpo solve-rates`
trial         the table of `grpo check-reward`

What all pages share:
page, links, style, glossary     HTML; links between pages; colours and sheets; explained words
"""

from grpo.report.curves import plot_run
from grpo.report.summary import samples_table, summary_table, write_markdown

__all__ = ["plot_run", "samples_table", "summary_table", "write_markdown"]
