"""This package shows runs to people: curves as pictures, evaluations as tables, and comparisons as web pages.

One run:
run_page      the report at a run's end
curves, small_charts, verdict, summary   its charts, judgement, and evaluations before and after
run_facts     how it was started
course        how it ended, and where it was resumed

Several runs:
contrast      compares variants; yardstick: by pass@1, or by the mean reward
contrast_page, contrast_panels, contrast_tables   the page, charts and tables of a comparison

The dynamics of a run:
dynamics, dynamics_panels, dynamics_tables   `grpo dynamics`: output, charts and tables
plan          `grpo dynamics plan`
whatif        `grpo dynamics whatif`

Other commands:
solve_rates   `grpo solve-rates`
trial         the table of `grpo check-reward`
conversation  an episode as a conversation

Shared by all pages:
page          what a page is; the terminal, HTML, Markdown and pictures show it
pictures, links, style, glossary     charts of HTML; links between pages; colours and sheets; explained words
"""
