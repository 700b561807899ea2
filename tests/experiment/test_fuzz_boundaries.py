"""Random command lines, targets and journals: every failure is an error of two lines. 20,000 of each: `-m fuzz`."""

import contextlib
import copy
import io
import itertools
import json
import random
import sys

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_session import cancelled_history, detailed_history, failed_history, sample_request

from advisor.cli import grammar
from advisor.cli import main as cli
from advisor.cli.commands.measure import measure_parser
from advisor.errors import AdvisorError
from advisor.experiment import events
from advisor.experiment.past.journal import SCHEMA, open_session, sessions_folder
from advisor.experiment.state import SessionState
from advisor.export.formats.html import html_report
from advisor.export.formats.markdown import markdown_report
from advisor.export.json_report import json_text
from advisor.figures.formatting import CONTROLS
from advisor.headless.summary import print_summary
from advisor.recipe.catalog import load_catalog
from advisor.records import TargetSpec
from advisor.report.verdict import result_line
from advisor.source.reading import read_sources
from advisor.target.entrypoint import load_target

MANY = pytest.param(20_000, marks=[pytest.mark.fuzz, pytest.mark.timeout(3600)])
EXAMPLES = pytest.mark.parametrize("examples", [200, MANY])
ANYTHING = st.text(st.characters(exclude_categories=()), max_size=30)


def fuzz(examples, strategy, check):
    """Run a check on so many inputs; few of them are the same in each run, so that a run can be repeated."""
    options_ = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples == 200,
        suppress_health_check=list(HealthCheck),
    )
    options_(given(strategy)(check))()


def told(error):
    """The two lines of an error, as they are printed."""
    with contextlib.redirect_stderr(io.StringIO()) as file:
        cli._complain(error.message, error.hint, error.details)
    lines = file.getvalue().splitlines()
    assert len(lines) >= 2
    assert lines[0].startswith("perf-advisor: ")
    assert not CONTROLS.search(file.getvalue())
    file.getvalue().encode()


# --- the command line -----------------------------------------------------------------------------------------

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


# --- targets --------------------------------------------------------------------------------------------------

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


# --- journals -------------------------------------------------------------------------------------------------

LEAVES = [
    float("nan"), float("inf"), -float("inf"), 1e308, -1.0, 0, 0.0, -(10**30), 10**400, "", "\ud800", "\x9b", "x" * 300,
    None, True, [], {}, [[]], {"": None}, "cuda", "nan",
]  # fmt: skip


def lines_of(history):
    header = {"schema": SCHEMA, "started": 1.7e9, "request": msgspec.to_builtins(sample_request())}
    unrecorded = events.BlockTimed | events.ProgressMade | events.TrialActivity
    kept = [event for event in history if not isinstance(event, unrecorded)]
    return [header, *({"event": type(e).__name__, "at": 1.0, "data": msgspec.to_builtins(e)} for e in kept)]


JOURNALS = [lines_of(history()) for history in (detailed_history, cancelled_history, failed_history)]


def damaged(seed):
    """A journal with a few values replaced, and sometimes bytes of it."""
    chance = random.Random(seed)
    lines = copy.copy(chance.choice(JOURNALS))
    for _ in range(chance.randrange(1, 4)):
        number = chance.randrange(len(lines))
        lines[number] = copy.deepcopy(lines[number])
        replace_a_leaf(lines[number], chance)
    text = bytearray("\n".join(json.dumps(line) for line in lines).encode() + b"\n")
    if chance.random() < 0.3:
        for _ in range(chance.randrange(1, 5)):
            text[chance.randrange(len(text))] = chance.randrange(256)
    return bytes(text)


def replace_a_leaf(value, chance):
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = chance.choice(keys)
        if not isinstance(value[key], dict | list) or not value[key] or chance.random() < 0.05:
            value[key] = chance.choice(LEAVES)
            return
        value = value[key]


def summary(state, request, catalog):
    out = io.StringIO()
    print_summary(state, out, catalog)
    return out.getvalue()


SHOWN = [summary, json_text, markdown_report, html_report]


# Journals with a block of no steps, a speed and a step without end, a profile of a step that took no time, half of
# a surrogate pair, and intervals that end below nothing and at nothing.
FOUND = (389627, 10013212, 39992281, 30016773, 761003, 399035, 5017798354914665)


@EXAMPLES
def test_journals(examples, tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path))
    sessions_folder().mkdir()
    path, catalog = sessions_folder() / "20260101-000000.jsonl", load_catalog()

    def shows(seed):
        path.write_bytes(damaged(seed))
        try:
            past = open_session()
        except AdvisorError as error:
            told(error)
            return
        state = SessionState.of(past.events)
        result_line(state)
        random.Random(seed).choice(SHOWN)(state, past.request, catalog).encode()

    # Damaged keys and values of settings, and damaged times, found by earlier runs.
    for found in (18972666, 477995336, 2929734, 437222685100, 2028133612728588, 1187792421, 21009245529520, *FOUND):
        shows(found)
    fuzz(examples, st.integers(0, 2**64), shows)
