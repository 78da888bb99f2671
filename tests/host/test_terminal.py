"""These tests hold that texts of problems, completions, servers and files never steer the terminal."""

import io
import os
import subprocess
import sys

import pytest
from rich.table import Table
from rich.text import Text

from grpo.host.alive import last_word
from grpo.host.terminal import Terminal, clean, facts_table, say, wrapped
from grpo.insight.pages.page import Page, write_html
from grpo.telemetry.console import RunDisplay

OWNED = "p1\x1b]0;owned\x07\x1b[2J\r\x9b1m\u202e \ud800 [/b]\n\ttail"
HARMLESS = r"p1\x1b]0;owned\x07\x1b[2J\r\x9b1m\u202e \ud800 [/b]" + "\n\ttail"


def shown(print_on):
    output = io.StringIO()
    print_on(Terminal(file=output, force_terminal=True, width=120, color_system=None))
    return output.getvalue()


def test_sentences_are_broken_between_words_on_a_terminal_and_not_in_a_file():
    output = io.StringIO()
    Terminal(file=output, force_terminal=True, width=20).print("a sentence of several words", soft_wrap=True)
    assert output.getvalue() == "a sentence of \nseveral words\n"
    output = io.StringIO()
    Terminal(file=output, width=20).print("a sentence of several words", soft_wrap=True)
    assert output.getvalue() == "a sentence of several words\n"


def test_help_is_broken_between_words_on_a_terminal_only(monkeypatch):
    text = "  report    compares the runs of a sweep"
    assert wrapped(text) == text
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    assert wrapped(text) == "  report    compares the runs\n            of a sweep"


def test_a_message_is_broken_between_words_where_stderr_is_a_terminal(monkeypatch, capsys):
    say("grpo: there is no file sums.csv")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    say("grpo: there is no file sums.csv")
    assert capsys.readouterr().err == "grpo: there is no file sums.csv\ngrpo: there is no\nfile sums.csv\n"


def test_a_message_and_the_end_of_its_line_are_written_together(monkeypatch):
    """Otherwise a message of another thread may come in between."""
    writes = []
    stream = io.StringIO()
    stream.write = writes.append
    monkeypatch.setattr("sys.stderr", stream)
    say("grpo: trying the episodes …")
    assert [text for text in writes if text] == ["grpo: trying the episodes …\n"]


def table(cell):
    rows = Table()
    rows.add_column(cell)
    rows.add_row(cell)
    return rows


def facts(text):
    return facts_table("Facts", ("what", "which"), [(text, 1)])


def test_characters_that_steer_are_spelled_out_and_no_others():
    assert clean(OWNED) == HARMLESS
    assert clean("½ 日本 é 🙂 [2J]\n\t") == "½ 日本 é 🙂 [2J]\n\t"


@pytest.mark.parametrize("form", [str, Text, table, facts], ids=["str", "text", "cell", "fact"])
def test_printed_text_is_cleaned(form):
    written = shown(lambda terminal: terminal.print(form(OWNED)))
    assert not set(written) & set("\x1b\x07\r\x9b\u202e\ud800")
    assert r"p1\x1b]0;owned" in written and "[/b]" in written


def test_a_cell_is_as_wide_as_what_is_shown_of_it():
    lines = shown(lambda terminal: terminal.print(table("a\x1b[2Jb"))).splitlines()
    assert r"│ a\x1b[2Jb │" in lines
    assert len({len(line) for line in lines}) == 1


def test_a_runs_notes_are_cleaned_and_its_live_bar_still_works():
    def note(terminal):
        display = RunDisplay(80, terminal)
        display.note(OWNED)
        display.close()

    written = shown(note)
    assert r"p1\x1b]0;owned" in written and "\x1b]0;" not in written
    assert "\x1b[2K" in written, "the bar was not drawn"


def test_the_last_word_of_a_log_is_cleaned(tmp_path):
    (tmp_path / "log").write_text("grpo: no such id: \x1b[2Jp1\n")
    assert last_word(tmp_path / "log") == r"no such id: \x1b[2Jp1"


def test_the_last_word_of_a_log_is_no_sign_of_life_and_a_log_may_be_gone(tmp_path):
    log = tmp_path / "log"
    log.write_text("grpo: the disk is full\ngrpo: starting vLLM … 20 s\ngrpo: still loading torch …\nnoise\n")
    assert last_word(log) == "the disk is full"
    log.write_text("grpo: still loading torch …\nMemoryError\n")
    assert last_word(log) == "MemoryError"
    assert last_word(tmp_path / "none") == f"its log {tmp_path / 'none'} is gone"


def test_a_lone_surrogate_does_not_make_a_page_fail(tmp_path):
    write_html(Page("Run", "x", ["\ud800 said"], "good", []), tmp_path / "page.html")
    assert r"\ud800 said" in (tmp_path / "page.html").read_text(encoding="utf-8")


COMMAND = """
import logging, sys
from types import SimpleNamespace
from grpo import cli
from grpo.config.errors import UserError

def fail(arguments):
    logging.getLogger("grpo.tasks").warning("left out %s", {text!r})
    print("\\ud800")
    raise UserError("no problem " + {text!r})

sys.modules["grpo.commands.doctor"] = SimpleNamespace(run=fail)
sys.exit(cli.main(["doctor"]))
"""


def test_warnings_and_errors_of_a_command_are_cleaned():
    done = subprocess.run(
        [sys.executable, "-c", COMMAND.format(text=OWNED)],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"},
    )
    said = done.stderr.decode()
    assert done.returncode == 2 and done.stdout.decode() == "\\ud800\n"
    assert said == f"left out {HARMLESS}\ngrpo: no problem {HARMLESS}\n"
