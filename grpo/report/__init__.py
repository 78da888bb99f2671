"""This package reports runs to people: curves as pictures, evaluations as tables, and comparisons as web pages."""

from grpo.report.curves import plot_run
from grpo.report.summary import facts_table, samples_table, summary_table, write_markdown

__all__ = ["facts_table", "plot_run", "samples_table", "summary_table", "write_markdown"]
