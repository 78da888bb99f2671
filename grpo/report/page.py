"""This module writes web pages, each a single HTML file that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.report.curves import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = (5.6, 3.4)


def picture(draw: Callable[[Axes], None], inches: tuple[float, float] = PANEL_INCHES) -> dict[str, str]:
    """Draws a panel as SVG for embedding in a page. The picture's title is that of the axes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg")
    return {"title": axes.get_title(loc="left"), "data": base64.b64encode(drawn.getvalue()).decode()}


def write_page(template: str, path: Path, **values: Any) -> None:
    """Fills in a template, which is a file of `templates/`, and writes it to `path`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("grpo.report"), autoescape=True, undefined=StrictUndefined)
    path.write_text(environment.get_template(template).render(**values), encoding="utf-8", errors="backslashreplace")
