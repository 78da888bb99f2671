"""These tests check charts in pages: inline, in the page's colours, with their values beside them."""

import io
import json
import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import grpo.insight.pages
from grpo.host.terminal import Terminal
from grpo.insight.diagnosis.findings import Finding
from grpo.insight.pages import pictures
from grpo.insight.pages.curves import Curves, panels_of
from grpo.insight.pages.page import PAGE, Block, Kind, Number, Page, publish, write_html
from grpo.insight.pages.style import legend_below, plain, sheet, tell
from tests.insight.structure import assert_well_made

TEMPLATES = Path(grpo.insight.pages.__file__).parent / "templates"


def bars_and_line(axes):
    axes.bar([0, 1], [0.25, 0.5], color="#D55E00", label="<b>bars</b>")
    axes.set_xticks([0, 1], ["hard", "easy"])
    axes.plot([0, 1], [0.1, float("nan")], color="#0072B2", label="line")
    axes.set_xlabel("difficulty")
    axes.set_title("How <hard>")
    return "It shows bars."


def test_a_chart_takes_the_colours_of_the_page_and_leaves_title_and_caption_to_it():
    drawn = pictures.picture(bars_and_line)
    assert (drawn["title"], drawn["caption"]) == ("How <hard>", "It shows bars.")
    assert "var(--orange)" in drawn["svg"] and "#d55e00" not in drawn["svg"].lower()
    assert "How" not in drawn["svg"] and "<b>" not in drawn["svg"] and "<g id" not in drawn["svg"]
    assert re.match(r"<svg [^>]*viewBox", drawn["svg"]) and " width=" not in drawn["svg"][: drawn["svg"].index(">")]


def test_the_values_of_a_chart_are_written_as_its_axes_do():
    values = json.loads(pictures.picture(bars_and_line)["values"])
    assert values["x"] == "difficulty"
    series = {one["name"]: one for one in values["series"]}
    assert [point[2:] for point in series["<b>bars</b>"]["points"]] == [["hard", "0.25"], ["easy", "0.5"]]
    assert series["<b>bars</b>"]["color"] == "var(--orange)"
    # A value that is no number has no place.
    assert [point[2:] for point in series["line"]["points"]] == [["hard", "0.1"]]
    left, right = series["<b>bars</b>"]["points"]
    assert left[0] < right[0] and left[1] > right[1], "further right, and higher up"


def test_a_wide_chart_is_drawn_once_more_for_a_phone():
    wide, narrow = pictures.wide_picture(bars_and_line)
    sizes = [
        [float(number) for number in re.search(r'viewBox="([^"]*)"', one["svg"])[1].split()] for one in (wide, narrow)
    ]
    assert [one["only"] for one in (wide, narrow)] == ["wide", "narrow"] and sizes[0][2] > 1.5 * sizes[1][2]


def test_a_chart_with_many_names_is_higher_and_cuts_nothing():
    def draw(count):
        def panel(axes):
            for index in range(count):
                axes.plot([0, 1], [0, index], label=f"a variant with a name of some length, number {index}")
            axes.set_ylabel("percentage points")
            legend_below(axes)
            return ""

        return float(re.search(r'viewBox="\S+ \S+ \S+ (\S+)"', pictures.picture(panel)["svg"])[1])

    assert draw(2) == pytest.approx(72 * pictures.PANEL_INCHES[1], abs=1)
    assert draw(8) > draw(2) + 50


def test_a_completion_cannot_break_out_of_the_page(tmp_path):
    attack = "</pre></details><script>alert(1)</script>"
    row = {"graded": True, "judged": True, "correct": False, "facts": attack, "text": attack}
    groups = [{"score": "0 of 1", "question": attack, "answer": attack, "about": attack, "rows": [row]}]
    blocks = [
        Block(Kind.DIAGNOSIS, [Finding("no signal", "note", attack, attack)], "Diagnosis"),
        Block(Kind.CHARTS, [bars_and_line], "Charts", attack),
        Block(Kind.COMPLETIONS, groups, "Completions"),
        Block(Kind.TABLE, [("key", "value"), (attack, attack)], "Settings", legend=attack),
    ]
    write_html(Page("Run", attack, [attack], "bad", blocks, state=attack, about=attack), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.count("<script>") == 1 and "alert(1)</script>" not in text
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append(tag)
    parser.feed(text)
    assert tags.count("details") == 2 and tags.count("script") == 1
    assert_well_made(text)
    assert "http" not in text.replace("http://www.w3.org", "")


def test_small_charts_of_the_last_row_are_no_wider_than_those_above():
    [rule] = re.findall(r"^\.charts\.small {(.*?)}$", (TEMPLATES / "page.css").read_text(), re.DOTALL | re.MULTILINE)
    assert "grid-template-columns: repeat(auto-fill, " in rule and "flex" not in rule


def test_the_script_stays_small():
    assert (TEMPLATES / "page.js").read_text().count("\n") < 150


def test_the_drawings_of_a_page_share_no_names():
    """A part that refers to a hidden drawing is not drawn, and the wide or the narrow chart is always hidden."""
    names = [set(re.findall(r' id="([^"]*)"', one["svg"])) for one in pictures.wide_picture(bars_and_line)]
    assert names[0] and names[1] and not names[0] & names[1]


def test_a_panel_can_say_what_its_points_tell_and_guides_tell_nothing():
    def draw(axes):
        (line,) = axes.plot([1, 2], [3.0, 4.0], label="line")
        tell(line, [("one", "3 of 4"), ("two", "4 of 4")])
        axes.axvline(1.5, label="guide")
        axes.set_title("Told")
        return ""

    [line] = json.loads(pictures.picture(draw)["values"])["series"]
    assert [point[2:] for point in line["points"]] == [["one", "3 of 4"], ["two", "4 of 4"]]


def test_the_axes_of_a_logarithm_write_plain_numbers_under_the_pointer():
    def draw(axes):
        axes.plot([1, 1000], [0.001, 10_000], label="line")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: plain(value))
        return ""

    [line] = json.loads(pictures.picture(draw)["values"])["series"]
    assert [point[2:] for point in line["points"]] == [["1", "0.001"], ["1,000", "10,000"]]


def test_titles_and_labels_of_a_sheet_are_not_cut(tmp_path, monkeypatch):
    """Pictures of runs once cut labels longer than a row is high, and titles longer than a panel is wide."""
    drawn = []

    def save(figure, path):
        path.touch()
        drawn.append(figure)

    monkeypatch.setattr(Figure, "savefig", save)
    rounds = [
        {"step": step, "pass_rate": 0.5, "reward/mean": 0.7, "policy/entropy": 1.0, "groups/silent_fraction": 0.1}
        | {"completions/length_mean": 9.0, "completions/right/length_mean": 8.0, "completions/length_p10": 1.0}
        | {"completions/wrong/length_mean": 9.5, "completions/length_p90": 20.0}
        for step in range(1, 9)
    ]
    run = Curves(rounds, [])
    sheet([partial(panel, run=run) for panel in panels_of(run)], tmp_path / "run.png", (10.0, 3.3), 2, first_wide=True)
    [figure] = drawn
    figure.draw_without_rendering()
    for axes in figure.axes:
        for text in (axes.xaxis.label, axes.yaxis.label, axes.title, axes._left_title):
            box = text.get_window_extent()
            inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
            assert inside or not text.get_text(), text.get_text()


def test_the_terminal_leaves_out_the_sentence_that_repeats_the_state_and_no_other(tmp_path):
    output = io.StringIO()
    for state, verdict in (
        ("8 rounds", ["8 rounds are too few"]),
        ("failed at step 3", ["The run failed at step 3.", "the disk is full"]),
        ("interrupted at step 4; go on", ["The run was interrupted at step 4; go on.", "No clear change."]),
    ):
        publish(Page("Kind", "x", verdict, "bad", [], state=state), tmp_path / "a.html", Terminal(file=output))
    lines = [line.rstrip() for line in output.getvalue().splitlines() if "report" not in line]
    assert lines == [
        *("x: 8 rounds", "8 rounds are too few"),
        *("x: failed at step 3", "the disk is full"),
        *("x: interrupted at step 4; go on", "No clear change."),
    ]


def test_dollar_signs_in_a_name_begin_no_formula(tmp_path):
    def draw(axes):
        axes.plot([1, 2], [1, 2], label="lr $^{$ 3")
        axes.set_title("a$^{$")
        axes.legend()

    assert "lr $^{$ 3" in pictures.picture(draw)["svg"]
    sheet([draw], tmp_path / "sheet.png", (4, 3), 1, first_wide=False)
    assert (tmp_path / "sheet.png").stat().st_size > 1000


def test_a_page_says_the_same_on_the_terminal_in_html_and_as_markdown(tmp_path):
    blocks = [
        Block(Kind.LINES, ["it was measured twice"], "How"),
        Block(Kind.TABLE, [("name", "value"), ("a|b", "1")], "Numbers", "All."),
        Block(Kind.TABLE, [("key", "value"), ("k", "v")], "Settings", only=PAGE),
        Block(Kind.DIAGNOSIS, [Finding("no signal", "note", "it fell", "wait")], "Diagnosis"),
        Block(Kind.CHARTS, [bars_and_line], "Charts"),
    ]
    output = io.StringIO()
    numbers = [Number("time", "3 s"), Number("gain", "+2", "of 5")]
    shown = Page("Kind", "x", ["all is well"], "good", blocks, numbers, state="finished", words=["seed"])
    publish(shown, tmp_path / "report.html", Terminal(file=output, width=100), also=("png", "md"), more=["the end"])
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    assert lines[:2] == ["x: finished", "Numbers: All"] and "Settings" not in output.getvalue()
    assert lines.index("all is well") > lines.index("│ a|b  │     1 │") and lines[-1] == "the end"
    assert lines.index("it was measured twice") > lines.index("all is well")
    assert any("no signal" in line and "wait" in line for line in lines)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith(
        "# x\n\nAll is well.\n\n- state: finished\n- time: 3 s\n- gain: +2 (of 5)\n\n"
        "![Charts](report.png)\n\n## How\n\nIt was measured twice.\n\n## Numbers\n\nAll."
    )
    assert "| a\\|b | 1 |" in text and "**note: no signal**" in text
    page = (tmp_path / "report.html").read_text()
    assert "<p>All is well.</p>" in page and "<h2>Settings</h2>" in page and "helps: wait." in page
    assert '<a href="report.md">' in page and '<a href="report.png">' in page
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert_well_made(page)
