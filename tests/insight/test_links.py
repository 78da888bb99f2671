"""These tests check that pages link to files beside them, and a comparison to its runs and back."""

import re

from grpo.insight.pages.links import links_of, links_to
from grpo.insight.pages.page import Block, Kind, Page, write_html


def addresses(path):
    return re.findall(r'href="([^"]*)"', path.read_text())


def write(path, *blocks, runs=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_html(Page("Plan", "x", [], "good", blocks), path, runs)


def test_pages_of_a_folder_link_to_each_other_whichever_was_written_first(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    write(tmp_path / "dynamics.html")
    assert addresses(tmp_path / "dynamics.html") == ["config.json"]
    write(tmp_path / "report.html")
    assert addresses(tmp_path / "report.html") == ["dynamics.html", "config.json"]
    assert addresses(tmp_path / "dynamics.html") == ["report.html", "config.json"]
    write(tmp_path / "whatif.html")
    assert addresses(tmp_path / "report.html") == ["dynamics.html", "whatif.html", "config.json"]


def test_a_comparison_and_its_runs_link_to_each_other(tmp_path):
    run, sweep = tmp_path / "cells" / "a seed#0", tmp_path
    write(run / "report.html")
    assert not links_of(run / "report.html")
    links = Block(Kind.LINKS, links_to([run, tmp_path / "not yet"], sweep), "Runs")
    write(sweep / "report.html", links, runs=[run])
    assert addresses(sweep / "report.html") == ["cells/a%20seed%230/report.html"]
    assert addresses(run / "report.html") == ["../../report.html"]
    # A comparison that does not show the run is none of its business.
    write(tmp_path / "other" / "run" / "report.html")
    assert addresses(tmp_path / "other" / "run" / "report.html") == []


def test_a_completion_is_no_list_of_links(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    write(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    (tmp_path / "report.html").write_text(text.replace("<h1>x", "<h1>&lt;nav&gt;mine&lt;/nav&gt;"))
    write(tmp_path / "plan.html")
    assert "&lt;nav&gt;mine&lt;/nav&gt;" in (tmp_path / "report.html").read_text()
    assert addresses(tmp_path / "report.html") == ["plan.html", "config.json"]
