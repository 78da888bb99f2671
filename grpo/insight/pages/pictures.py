"""This module draws the charts of web pages.

Charts are inline SVG, so that they take the page's colours, in dark mode too. Each chart comes with a list of its
points and their values, which the page's script shows under the pointer.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.insight.pages.style import STYLE, plain, with_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Draw = Callable[["Axes"], str]
PANEL_INCHES, WIDE_INCHES, SMALL_INCHES = (4.8, 3.3), (9.4, 3.9), (3.4, 2.4)
# The height of a legend of two lines, for which every chart has room.
LEGEND_INCHES = 0.45
# The words of a chart are set by the browser, in the page's font.
_PAGE_STYLE = STYLE | {
    "font.size": 9.5,
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.titlesize": 0.01,
}
_VARIABLES = {
    "#0072b2": "blue", "#d55e00": "orange", "#009e73": "green", "#000000": "ink", "#cc79a7": "pink",
    "#e69f00": "yellow", "#56b4e9": "sky",
}  # fmt: skip
"""A chart's colours and the page's CSS variables that replace them, since they differ between light and dark mode."""
# The page's script gets the values of at most about this many points of each series.
_MOST_VALUES = 240


def picture(draw: Draw, inches: tuple[float, float] = PANEL_INCHES) -> dict[str, str]:
    """Draws a panel of a size for a page, and returns its title, caption, SVG, and the values of its points as JSON."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_PAGE_STYLE):
        # The SVG's unit is a point, a 72nd of an inch. With 72 dots an inch, matplotlib's pixels are the same.
        figure = Figure(figsize=inches, dpi=72, layout="constrained")
        axes = figure.add_subplot()
        caption = draw(axes) or ""
        _make_room(figure, axes)
        title = axes.get_title(loc="left")
        axes.set_title("", loc="left")
        drawing = io.StringIO()
        # The salt determines the ids within an SVG. Two charts of a page need different ids: a reference to the id of a
        # hidden chart, such as the one for phones, would find nothing.
        with matplotlib.rc_context({"svg.hashsalt": f"{title} {inches}"}):
            figure.savefig(drawing, format="svg", metadata={"Date": None})
        values = {"x": axes.get_xlabel(), "series": list(_series(axes))}
    return {
        "title": title,
        "caption": caption,
        "only": "",
        "svg": _inline(drawing.getvalue()),
        "values": json.dumps(values, ensure_ascii=False),
    }


def _make_room(figure: Figure, axes: Axes) -> None:
    """Makes a chart higher by what its legend needs beyond two lines, so that the curves keep their height."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if legend := axes.get_legend():
        inches = legend.get_window_extent(FigureCanvasAgg(figure).get_renderer()).height / figure.dpi
        figure.set_figheight(figure.get_figheight() + max(0.0, inches - LEGEND_INCHES))


def pictures(draws: Sequence[Draw], first_wide: bool = True) -> list[dict[str, str]]:
    """Draws panels for a page, two in a row. With `first_wide` the first one has a row of its own, and so has a last
    one that would have no neighbour."""
    alone = {0} if first_wide else set()
    if (len(draws) - len(alone)) % 2:
        alone.add(len(draws) - 1)
    drawn = [wide_picture(draw) if index in alone else [picture(draw)] for index, draw in enumerate(draws)]
    return [one for several in drawn for one in several]


def wide_picture(draw: Draw) -> list[dict[str, str]]:
    """Draws a panel over the page's whole width, and once more for a phone. The page shows the one that fits."""
    return [picture(draw, WIDE_INCHES) | {"only": "wide"}, picture(draw) | {"only": "narrow"}]


def _inline(svg: str) -> str:
    """Turns matplotlib's SVG into a part of a page: without prologue, group ids or fixed size, in its colours."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", body, count=2)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", body).replace("px inherit", "px system-ui, sans-serif")
    return re.sub(r"#[0-9a-f]{6}\b", lambda match: _variable(match[0]), body)


def _variable(color: str) -> str:
    """Returns the page's CSS variable for a colour of `_VARIABLES` or a grey, or `color` itself for any other."""
    if color in _VARIABLES:
        return f"var(--{_VARIABLES[color]})"
    parts = {color[index : index + 2] for index in (1, 3, 5)}
    if len(parts) > 1:
        return color
    brightness = int(parts.pop(), 16) / 255
    return f"var(--{'line' if brightness > 0.85 else 'pale' if brightness > 0.65 else 'faint'})"


def _series(axes: Axes) -> Iterator[dict[str, Any]]:
    """Yields name, colour and points of each series in a chart's legend.

    A point is [x, y, text of x, text of y], with x and y in the SVG's units.
    """
    height = axes.figure.bbox.height
    for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
        points = _points(handle, axes)
        if points is None or not len(points):
            continue
        point_texts = getattr(handle, "point_texts", None) or _texts_of(points, handle, axes)
        stride = -(-len(points) // _MOST_VALUES)
        rows = []
        for point, texts in zip(points[::stride], point_texts[::stride], strict=True):
            if np.isfinite(point).all():
                x, y = axes.transData.transform(point)
                rows.append([round(float(x), 1), round(float(height - y), 1), *texts])
        yield {"name": name, "color": _color(handle), "points": rows}


def _texts_of(points: np.ndarray, handle: Any, axes: Axes) -> list[tuple[str, str]]:
    """Returns the texts (of x, of y) of points as their axes write them, with the values of single rounds if known."""
    is_finite = np.isfinite(points).all(axis=1)
    texts = [
        (_text(axes.xaxis, x), _text(axes.yaxis, y)) if finite else ("", "")
        for (x, y), finite in zip(points, is_finite, strict=True)
    ]
    rounds = getattr(handle, "round_values", None)
    if rounds is None:
        return texts
    return [(x, with_mean(_text(axes.yaxis, own), mean)) for (x, mean), own in zip(texts, rounds, strict=True)]


def _points(handle: Any, axes: Axes) -> np.ndarray | None:
    """Returns the points of a line, error bars or bars, in the chart's units.

    Returns None for areas, and for guide lines from one side of the chart to the other.
    """
    if hasattr(handle, "get_xydata"):
        guide = handle.get_transform() != axes.transData
        return None if guide else np.asarray(handle.get_xydata(), float)
    if hasattr(handle, "patches"):
        return np.array([(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in handle.patches])
    if hasattr(handle, "lines"):
        return np.asarray(handle.lines[0].get_xydata(), float)
    return None


def _color(handle: Any) -> str:
    from matplotlib.colors import to_hex

    artist = handle.patches[0] if hasattr(handle, "patches") else handle
    artist = artist.lines[0] if hasattr(artist, "lines") and not hasattr(artist, "get_xydata") else artist
    color = artist.get_color() if hasattr(artist, "get_color") else artist.get_facecolor()
    return _variable(to_hex(color))


def _text(axis: Axis, value: float) -> str:
    """Formats a value as its axis does, but numbers by `plain` and percents with one decimal."""
    from matplotlib.ticker import PercentFormatter, ScalarFormatter

    formatter = axis.get_major_formatter()
    if isinstance(formatter, PercentFormatter):
        return f"{value:.1%}"
    if isinstance(formatter, ScalarFormatter):
        return plain(value)
    # Neighbouring bars of one category share the nearest tick, whose label is the category.
    ticks = np.asarray(axis.get_majorticklocs())
    return formatter(value) or formatter(ticks[np.argmin(np.abs(ticks - value))])
