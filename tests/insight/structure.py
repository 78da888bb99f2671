"""This module checks what every page must have, whatever it says."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def assert_well_made(text):
    """Asserts that headings are in order, and that drawings have names for whoever hears the page. Nothing may come
    from a network, and no value of a chart may be broken."""
    page = _Page()
    page.feed(text)
    tags = page.tags
    assert ("html", {"lang": "en"}) in tags and re.search(r"<title>\S+ · \S", text)
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels)), levels
    figures = [attributes for tag, attributes in tags if tag == "figure"]
    drawings = [attributes for _, attributes in tags if attributes.get("role") == "img"]
    assert (
        figures and len(figures) == len(drawings) and all(len(attributes["aria-label"]) > 10 for attributes in drawings)
    )
    assert all(attributes["aria-label"] for _, attributes in tags if attributes.get("class") in ("scroll", "chart"))
    names = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(names) == len(set(names)), "a drawing that is hidden cannot lend its parts to another"
    assert not [attributes for _, attributes in tags if {"src", "srcset"} & attributes.keys()]
    assert all(attributes.get("xlink:href", "#").startswith("#") for _, attributes in tags)
    for figure in figures:
        values = json.loads(figure["data-values"])
        cells = [cell for one in values["series"] for point in one["points"] for cell in point[2:]]
        assert not [cell for cell in cells if re.search(r"mathdefault|nan|e[+-]\d", cell)], values["x"]
    words = re.sub(r"(?s)<svg.*?</svg>|<script.*?</script>|<style.*?</style>", "", text)
    assert not re.search(r"\D-0\.0+\D", words), "no change has no sign"
    assert not re.search(r"\d %", words), "a percent sign would begin a line"


def complaints(error):
    """Returns the lines of stderr without signs of life, which come when a command takes longer than two seconds."""
    return [line for line in error.splitlines() if not re.fullmatch(r"grpo: .* …( \d+ s)?", line)]
