# ruff: noqa: RUF001 - the en dash stands between the ends of an interval
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from proposals import CATALOG
from report_text import body_of, html_block, html_report, markdown_report, table_rows
from sample_session import cancelled_history, detailed_history, failed_history, sample_history, sample_request

from advisor.cli.grammar import parse
from advisor.experiment.events import ExportVerified, GoalSet
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.export.json_report import report
from advisor.judging.objective import Goal
from advisor.records import Comparison, Objective, TargetSpec, Verification
from advisor.report.document import Listing
from advisor.report.verdict import verdict
from advisor.report.whole import reproduce_section

HOSTILE = "<script>alert('x')</script> | [red]*bold*[/] `tick` & _under_\nnext"


@pytest.fixture(scope="module")
def text() -> str:
    return markdown_report(SessionState.of(sample_history()), sample_request(), CATALOG)


class _Page(HTMLParser):
    """Checks that tags nest, and collects tags and visible text."""

    VOID = frozenset({"meta", "br", "hr", "img", "link"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data


def test_the_sections_in_their_order(text):
    assert re.findall(r"^## (.*)$", text, re.M) == [
        *("The settings together", "Settings, best first", "Why they help", "Batch sizes", "Found in your source"),
        *("Baseline", "Where the time goes", "Efficiency", "Waits and habits", "Not tried", "Hardware and versions"),
        "How the numbers were made",
    ]
    assert "torch | 2.11.0+cu130" in text
    assert "The step is compute-heavy: the GPU is busy 97 %" in text
    assert "2 min 23 s" in text


def test_both_forms_say_the_same(text):
    page = _Page(html_report(SessionState.of(sample_history()), sample_request(), CATALOG))
    for words in ("1.97x (1.96–1.98)", "data wait is 0.3 % of the step", "aten::convolution_backward", "58.8 %"):
        assert words in text
        assert words in page.text
    rules = [line for line in text.splitlines() if re.fullmatch(r"\|( -+:? \|)+", line)]
    assert [tag for tag, _ in page.tags].count("table") == len(rules) == 10


def test_the_page_stands_alone_in_light_and_dark():
    source = html_report(SessionState.of(sample_history()), sample_request(), CATALOG)
    page = _Page(source)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe"}
    assert not [attributes for _, attributes in page.tags if "src" in attributes]
    assert all(attributes["href"].startswith("#") for _, attributes in page.tags if "href" in attributes)
    assert "url(" not in source
    assert "@import" not in source
    assert "prefers-color-scheme: dark" in source
    assert '<meta charset="utf-8">' in source


def test_text_of_the_user_is_never_markup():
    state = SessionState.of(sample_history())
    name = "compile=max-autotune"
    state.trials[name] = replace(state.trials[name], result=replace(state.trials[name].result, reason=HOSTILE))
    state.skipped = {HOSTILE: HOSTILE}
    request = replace(sample_request(), target=replace(sample_request().target, target=HOSTILE))
    page = _Page(html_report(state, request, CATALOG))
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count("<script>alert('x')</script>") == 5
    text = markdown_report(state, request, CATALOG)
    fenced = re.compile(r"^(`{3,})\w*\n.*?^\1$", re.M | re.S)  # in a listing nothing is markup
    assert "<script>" not in fenced.sub("", text).replace("\\<script\\>", "")
    assert len({len(row) for row in table_rows(text, "Settings, best first")}) == 1
    assert len({len(row) for row in table_rows(text, "Not tried")}) == 1
    assert "\\[red\\]\\*bold\\*" in text
    assert "\\_under\\_" in text


@pytest.mark.parametrize("render", [markdown_report, html_report])
@pytest.mark.parametrize(
    ("history", "words"),
    [
        ([], "Nothing has been measured."),
        (failed_history(), "mymodel has no &#39;build&#39;|mymodel has no 'build'"),
        (cancelled_history(), "did not run to its end"),
    ],
)
def test_a_session_that_did_not_get_there(render, history, words):
    assert re.search(words, render(SessionState.of(history), sample_request(), CATALOG))


def test_without_settings_nothing_is_said_of_their_order():
    text = markdown_report(SessionState.of([GoalSet(Goal(Objective.MEMORY))]), sample_request(), CATALOG)
    assert "## Settings" not in text


def test_a_stack_that_is_not_faster_is_not_sold_as_one():
    state = SessionState.of(sample_history())
    state.measured_stack = replace(state.stack, comparison=Comparison(1.001, 0.998, 1.004), confirmed=False)
    text = markdown_report(state, sample_request(), CATALOG)
    assert text.splitlines()[2] == (
        "ResNet training on 1 x NVIDIA H200: 4 of 8 candidates are measurably faster; nothing that was measured "
        "together is measurably faster."
    )
    rows = dict(table_rows(text, "The settings together")[2:])
    assert rows["Speed-up"] == "1.001x (0.998–1.004), same, measured once"


# --- all that a measurement can tell --------------------------------------------------------------------------


@pytest.fixture
def detailed() -> SessionState:
    return SessionState.of(detailed_history())


@pytest.fixture
def told(detailed) -> str:
    return markdown_report(detailed, sample_request(), CATALOG)


@pytest.mark.parametrize(
    ("speedup", "problem", "warns"), [(1.0, "", False), (0.5, "", True), (0.8, "", True), (None, "it failed", True)]
)
def test_a_plain_loop_that_says_otherwise_is_a_warning(detailed, speedup, problem, warns):
    """``speedup`` is a multiple of the session's own."""
    measured = detailed.stack.comparison.speedup
    found = speedup and speedup * measured
    detailed.apply(ExportVerified(Verification("tuned.yaml", found, 26.3, 13.8, measured, problem=problem)))
    warnings = body_of(markdown_report(detailed, sample_request(), CATALOG), "Read this first")
    assert ("exported file" in warnings) is warns
    assert ("not confirmed" in verdict(detailed)) is warns
    assert report(detailed, sample_request())["verification"]["confirmed"] is not warns


def test_warnings_come_right_after_the_result(told):
    assert re.findall(r"^## (.*)$", told, re.M)[:2] == ["Read this first", "The settings together"]
    warnings = body_of(told, "Read this first")
    assert "- This machine was noisy: end other programs and run again." in warnings
    assert "power cap" not in warnings  # a heavy step earns it


def test_what_disturbed_the_stack_is_a_warning(detailed):
    detailed.measured_stack = replace(detailed.stack, result=replace(detailed.stack.result, disturbed="the clock fell"))
    warnings = body_of(markdown_report(detailed, sample_request(), CATALOG), "Read this first")
    assert "The settings together are unreliable: the clock fell." in warnings


@pytest.mark.parametrize(
    ("section", "row"),
    [
        ("The settings together", ["Step", "26.3 → 13.4 ms (-49 %)"]),
        ("The settings together", ["Speed-up", "1.97x (1.96–1.98), confirmed"]),
        ("Baseline", ["Energy", "252 mJ a sample, whole GPU"]),
        (
            "Baseline",
            [
                "GPU",
                "61 °C at most, SM clock 1755 MHz, 612 W on average, at its power cap, clocks limited "
                "(software thermal slowdown)",
            ],
        ),
        ("Where the time goes", ["`aten::convolution`", "53", "5.41 ms", "0.40 ms"]),
        ("Efficiency", ["Matrix products", "17 % of 361 TFLOP/s tf32"]),
        ("Efficiency", ["Memory traffic", "45 % of 4.02 TB/s, about 44.7 GiB a step"]),
        ("Waits and habits", ["train.py:41", "`total += loss.item()`", "1", "19.4 ms"]),
    ],
)
def test_a_figure_stands_in_its_section(told, section, row):
    assert row in table_rows(told, section)


def test_the_operators_of_most_time_come_first(told):
    operators = [row for row in table_rows(told, "Where the time goes") if row[0].startswith("`")]
    assert operators[0][0] == "`aten::convolution`"
    assert len(operators) == 10
    assert "3 more" in told


def test_what_was_not_tried_stands_with_the_reasons(told):
    first = table_rows(told, "Not tried")[2]
    assert first[1] == "compile_scope=regional, batch_size=256, batch_size=512"
    assert "42 s" in first[0]


# --- sessions without a stack ---------------------------------------------------------------------------------


def test_a_stack_of_nothing_is_not_shown(detailed):
    detailed.measured_stack = replace(detailed.stack, settings={}, dropped={})
    text = markdown_report(detailed, sample_request(), CATALOG)
    assert "## The settings together" not in text
    assert "nothing that was measured together is" in text.splitlines()[2]
    detailed.measured_stack = replace(detailed.stack, dropped={"compile": "it adds nothing"})
    section = body_of(markdown_report(detailed, sample_request(), CATALOG), "The settings together")
    assert "; nothing that was measured together is measurably faster" in section
    assert "- compile: it adds nothing" in section
    assert "```" not in section


@pytest.mark.parametrize(("lines", "folded"), [(30, False), (31, True)])
def test_a_long_listing_of_the_page_opens_on_a_click(lines, folded):
    shown = html_block(Listing("x < 1\n" * lines))
    assert shown.count("x &lt; 1") == lines
    assert shown.startswith(f"<details><summary>{lines} lines</summary><pre>" if folded else "<pre>")


# --- batch sizes: the knee, the learning rate, and no more than the trials have shown -------------------------------


def test_the_sweep_with_its_knee_and_the_advice(told):
    rows = table_rows(told, "Batch sizes")
    assert rows[0] == ["Batch", "Step", "Samples/s", "Gain", "Memory", "Remark"]
    assert [row[-1] for row in rows[2:]] == ["", "knee"]
    section = body_of(told, "Batch sizes")
    assert "start from 1.41 times the learning rate (square-root scaling)" in section
    assert "128 samples is the knee" in section


def test_one_size_is_no_sweep(detailed):
    del detailed.trials["batch_size=128"]
    assert "## Batch sizes" not in markdown_report(detailed, sample_request(), CATALOG)


# --- how to run the session again -----------------------------------------------------------------------------

NAMED = [GoalSet(Goal(), "20261122-222304"), *sample_history()[1:]]


def test_the_session_its_date_and_its_command_are_told():
    request = replace(sample_request(), command=("mymodel:build", "--budget", "90s"))
    blocks = reproduce_section(SessionState.of(NAMED), request).blocks
    assert blocks[0] == "Session 20261122-222304."
    assert blocks[-1] == Listing("perf-advisor mymodel:build --budget 90s", "bash")


def test_a_session_that_no_command_line_began_has_its_name_only():
    assert reproduce_section(SessionState.of(NAMED), sample_request()).blocks == ("Session 20261122-222304.",)


def test_the_command_is_kept_as_it_was_typed_without_secrets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "m:build --gpus 2 --nnodes 2 --rdzv-endpoint a:1 -- --hf_token x --lr 0.1"
    typed = line.split()
    assert parse(typed).request.command == tuple("***" if word == "x" else word for word in typed)


def test_a_resumed_session_keeps_the_command_that_began_it():
    past = Request(TargetSpec("m:build", "/a"), command=("m:build", "--only", "tf32"))
    assert Request(TargetSpec("", "/a"), command=("--resume",)).continuing(past).command == past.command
