"""What a run leaves for people: its curves as a picture, its evaluations before and after as tables."""

from grpo.report.curves import plot_run
from grpo.report.summary import facts_table, samples_table, summary_table, write_markdown

__all__ = ["facts_table", "plot_run", "samples_table", "summary_table", "write_markdown"]
