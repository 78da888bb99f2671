"""This module leaves out the drawing of charts in programs that are forked (see warm.py).

Drawing takes most of the time of a short run, which ends with fifteen charts. The charts are made, but matplotlib
writes none of their lines. Runs that start cold, and pages that are made in the test's own process, are drawn.
"""

from matplotlib.figure import Figure

save = Figure.savefig


def savefig(self: Figure, file, format: str | None = None, **options) -> None:
    if format == "svg":
        file.write("<svg></svg>")
    else:
        save(self, file, format=format, **options)


Figure.savefig = savefig
