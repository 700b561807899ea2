"""Random command lines, targets and journals: every failure is an error of two lines. `-m fuzz` tries 20,000 each."""

import contextlib
import io
import itertools
import random
import sys

import pytest
from fuzzed import MANY, fuzz
from hypothesis import strategies as st
from report_text import html_report, markdown_report
from sample_session import cancelled_history, detailed_history, failed_history, written

from advisor.cli import grammar
from advisor.cli import main as cli
from advisor.cli.commands.measure import measure_parser
from advisor.errors import AdvisorError
from advisor.experiment.past.journal import open_session
from advisor.experiment.state import SessionState
from advisor.export.json_report import json_text
from advisor.figures.formatting import CONTROLS
from advisor.recipe.catalog import load_catalog
from advisor.records import TargetSpec
from advisor.report.terminal import print_sections
from advisor.report.verdict import result_line
from advisor.report.whole import summary_sections
from advisor.source.reading import read_sources
from advisor.workloads.entrypoint import load_target

EXAMPLES = pytest.mark.parametrize(
    "examples", [60, pytest.param(MANY, marks=[pytest.mark.fuzz, pytest.mark.timeout(3600)])]
)
ANYTHING = st.text(st.characters(exclude_categories=()), max_size=30)


def told(error):
    """The two lines of an error, as they are printed."""
    with contextlib.redirect_stderr(io.StringIO()) as file:
        cli._complain(error.message, error.hint, error.details)
    lines = file.getvalue().splitlines()
    assert len(lines) >= 2
    assert lines[0].startswith("perf-advisor: ")
    assert not CONTROLS.search(file.getvalue())
    file.getvalue().encode()


OPTIONS = [option for action in measure_parser("")._actions for option in action.option_strings]
WORDS = st.sampled_from(
    [*OPTIONS, *grammar.COMMANDS, "demo", "m:b", "a.py", "--", "-", "1", "0", "-1", "90s", "1h", "16GiB", "cpu", "90%"]
)
LARGE = st.sampled_from(["9" * 400, "1e999", "9" * 30 + "h", "٣", "²", "x" * 5000, "a\0b", "\udcff.py", "~", "/", "//"])


@EXAMPLES
def test_command_lines(examples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def parses(arguments):
        code = None
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                grammar.parse(arguments)
            except AdvisorError as error:
                told(error)
            except SystemExit as left:  # --help, --version
                code = left.code
        assert not code

    valued = st.tuples(st.sampled_from(OPTIONS), LARGE | ANYTHING).map(list)
    words = (WORDS | LARGE | ANYTHING).map(lambda word: [word])
    fuzz(examples, st.lists(words | valued, max_size=4).map(lambda parts: [*itertools.chain(*parts)]), parses)


NAMES = st.lists(
    st.sampled_from(
        ["m", "my.py", "..", ".", "/", ":", "é", "\0", "\udcff", "a" * 300, " ", "\n", "json", "%", "*", "[", "]"]
    )
    | ANYTHING,
    min_size=1,
    max_size=5,
).map("".join)


@EXAMPLES
def test_target_strings(examples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def loads(target):
        try:
            load_target(TargetSpec(target, str(tmp_path)))
        except AdvisorError as error:
            told(error)
        for reading in read_sources(target, str(tmp_path), ()):
            assert isinstance(reading.problem, str)
        with contextlib.suppress(AdvisorError):
            assert grammar.parse(["--headless", target]).request.target.command

    fuzz(examples, NAMES, loads)


def damaged(seed, histories):
    """A journal of which a few bytes are replaced or lost."""
    chance = random.Random(seed)
    text = bytearray(chance.choice(histories))
    for _ in range(chance.randrange(1, 5)):
        text[chance.randrange(len(text))] = chance.randrange(256)
    return bytes(text[: chance.randrange(len(text))] if chance.random() < 0.2 else text)


def summary(state, request, catalog):
    out = io.StringIO()
    print_sections(summary_sections(state, catalog), out)
    return out.getvalue()


SHOWN = [summary, lambda state, request, catalog: json_text(state, request), markdown_report, html_report]


@EXAMPLES
def test_journals(examples, tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path))
    paths = [written(history()).path for history in (detailed_history, cancelled_history, failed_history)]
    histories, path, catalog = [path.read_bytes() for path in paths], paths[-1], load_catalog()

    def shows(seed):
        path.write_bytes(damaged(seed, histories))
        try:
            past = open_session()
        except AdvisorError as error:
            told(error)
            return
        state = SessionState.of(past.events)
        result_line(state)
        random.Random(seed).choice(SHOWN)(state, past.request, catalog).encode()

    fuzz(examples, st.integers(0, 2**64), shows)
