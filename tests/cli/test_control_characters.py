"""A target's texts cannot control the terminal: their control characters are shown as text everywhere."""

import contextlib
import io
import json
import re
from dataclasses import replace

import msgspec
import pytest
from on_a_terminal import Terminal
from report_text import html_report, markdown_report
from sample_session import detailed_history, failed_history, sample_request

from advisor.cli import grammar
from advisor.cli import main as cli
from advisor.errors import TargetError
from advisor.experiment.state import SessionState
from advisor.export.json_report import json_text
from advisor.figures.formatting import CONTROLS
from advisor.headless.run import HeadlessReporter
from advisor.recipe.catalog import load_catalog
from advisor.report.terminal import print_sections
from advisor.report.whole import summary_sections

STEERS = "\x1b[2J\x9b31m\x1b]0;title\x07"
SHOWN = r"\x1b[2J\x9b31m\x1b]0;title\x07"
FREE_TEXTS = {
    *("reason", "hint", "details", "notes", "text", "why"),
    *("disturbed", "model", "message", "problems", "evidence"),
}
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def steered(value, key=""):
    """A value that contains terminal sequences in every text that a target or a library may write."""
    if isinstance(value, dict):
        return {name: steered(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [steered(item, key) for item in value]
    return value + STEERS if isinstance(value, str) and key in FREE_TEXTS else value


def history(made):
    return [msgspec.convert(steered(msgspec.to_builtins(event)), type(event)) for event in made]


@pytest.mark.parametrize("told", [detailed_history, failed_history])
@pytest.mark.parametrize("file", [io.StringIO, Terminal])
def test_nothing_reaches_the_terminal(told, file):
    out, made = file(), history(told())
    reporter = HeadlessReporter(out)
    for event in made:
        reporter.handle(event)
    print_sections(summary_sections(SessionState.of(made), load_catalog()), out)
    text = COLOURS.sub("", out.getvalue()) if out.isatty() else out.getvalue()
    assert not CONTROLS.search(text)
    assert told is failed_history or r"\x9b31m" in text


@pytest.mark.parametrize("told", [detailed_history, failed_history])
def test_reports_and_json_hold_none(told):
    state, request, catalog = SessionState.of(history(told())), sample_request(), load_catalog()
    for text in (
        markdown_report(state, request, catalog),
        html_report(state, request, catalog),
        json_text(state, request),
    ):
        assert not CONTROLS.search(text)
    assert STEERS in "".join(texts(json.loads(json_text(state, request))))


def test_the_target_may_have_a_name_that_is_no_text():
    request = sample_request()
    named = replace(request.target, target="caf\udce9.py:build", arguments=("\udcff\x1b",))
    text = json_text(SessionState(), replace(request, target=named))
    assert text.isascii()
    told = json.loads(text)
    assert told["target"] == "caf\udce9.py:build"
    assert told["arguments"] == ["\udcff\x1b"]


def texts(value):
    if isinstance(value, str):
        yield value
    for item in value.items() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from texts(item)


def test_an_error_of_two_lines_and_its_details(monkeypatch):
    def fail(invocation):
        raise TargetError(f"no build{STEERS}", f"define it{STEERS}", f"line 1{STEERS}\nline 2\x85!")

    monkeypatch.setattr(grammar, "parse", fail)
    with contextlib.redirect_stderr(io.StringIO()) as file:
        assert cli.main(["demo"]) == 3
    assert file.getvalue().splitlines() == [
        f"perf-advisor: no build{SHOWN}",
        f"define it{SHOWN}",
        f"line 1{SHOWN}",
        r"line 2\x85!",
    ]
