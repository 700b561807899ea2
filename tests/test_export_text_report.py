# ruff: noqa: RUF001 - the en dash stands between the ends of an interval
from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from sample_session import (
    cancelled_history,
    cpu_history,
    cpu_request,
    failed_history,
    sample_history,
    sample_request,
)

from advisor.catalog import Catalog, load_catalog
from advisor.export.text_report import html_report, markdown_report
from advisor.records import Comparison
from advisor.session.state import SessionState

HOSTILE = "<script>alert('x')</script> | [red]*bold*[/] `tick` & _under_\nnext"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture(scope="module")
def text(catalog) -> str:
    return markdown_report(SessionState.of(sample_history()), sample_request(), catalog)


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


def table_rows(text: str, section: str) -> list[list[str]]:
    body = text.split(f"\n## {section}\n")[1].partition("\n## ")[0]
    rows = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_the_summary_says_how_much_faster_on_what(text):
    assert text.splitlines()[2] == (
        "3 settings together make ResNet training 1.97x (1.96–1.98) as fast on 1 x NVIDIA H200, confirmed in turns "
        "with the baseline: 26.3 ms a step before, 13.4 ms tuned."
    )


def test_the_sections_in_their_order(text):
    assert re.findall(r"^## (.*)$", text, re.M) == [
        "Hardware and versions",
        "Baseline",
        "Where the time goes",
        "Recommendations",
        "The settings together",
        "All trials",
        "Not tried",
        "Habits, way by way",
        "Found in the source",
        "How the numbers were made",
    ]
    assert "torch | 2.11.0+cu130" in text
    assert "The step is bound by compute: the GPU is busy 97 %" in text
    assert "noise floor, here ±0.6 %" in text
    assert "2 min 23 s" in text


def test_phases_with_their_shares(text):
    rows = table_rows(text, "Where the time goes")
    assert ["backward", "15.9 ms", "58.8 %"] in rows
    assert ["data wait", "80.0 µs", "0.3 %"] in rows


def test_the_ranking(text):
    rows = table_rows(text, "Recommendations")[2:]
    assert rows[0][:4] == [
        "1",
        "Channels-last memory format",
        "`model.memory_format: channels_last`",
        "1.39x (1.38–1.40)",
    ]
    assert rows[0][-1] == "in the stack"
    assert "consent" in rows[2][-1]
    assert len(rows) == 4


def test_every_trial_is_there_with_interval_or_reason(text):
    rows = {row[1]: row for row in table_rows(text, "All trials")[2:]}
    assert len(rows) == 9
    assert rows["`backends.cudnn_benchmark: true`"][2:4] == ["no measurable difference", "1.001x (0.997–1.005)"]
    failed = rows["`compile.mode: max-autotune`"]
    assert failed[2] == "out of memory"
    assert failed[3] == failed[4] == "–"
    assert "2.00 GiB" in failed[-1]
    assert "Try a smaller batch" in failed[-1]
    skipped = table_rows(text, "Not tried")[2:]
    assert ["DataLoader workers", "data wait is 0.3 % of the step"] in skipped
    assert len(skipped) == 4


def test_both_forms_say_the_same(catalog, text):
    page = _Page(html_report(SessionState.of(sample_history()), sample_request(), catalog))
    for words in ("1.97x (1.96–1.98)", "data wait is 0.3 % of the step", "aten::convolution_backward", "58.8 %"):
        assert words in text
        assert words in page.text
    rules = [line for line in text.splitlines() if re.fullmatch(r"\|( -+:? \|)+", line)]
    assert [tag for tag, _ in page.tags].count("table") == len(rules) == 10


def test_the_page_stands_alone_in_light_and_dark(catalog):
    source = html_report(SessionState.of(sample_history()), sample_request(), catalog)
    page = _Page(source)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe"}
    assert not [attributes for _, attributes in page.tags if attributes.keys() & {"src", "href"}]
    assert "url(" not in source
    assert "@import" not in source
    assert "prefers-color-scheme: dark" in source
    assert '<meta charset="utf-8">' in source


def test_text_of_the_user_is_never_markup(catalog):
    state = SessionState.of(sample_history())
    name = "compile=max-autotune"
    state.trials[name] = replace(state.trials[name], result=replace(state.trials[name].result, reason=HOSTILE))
    state.skipped = {HOSTILE: HOSTILE}
    request = replace(sample_request(), target=replace(sample_request().target, target=HOSTILE))
    page = _Page(html_report(state, request, catalog))
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count("<script>alert('x')</script>") == 5
    text = markdown_report(state, request, catalog)
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert len({len(row) for row in table_rows(text, "All trials")}) == 1
    assert len({len(row) for row in table_rows(text, "Not tried")}) == 1
    assert "\\[red\\]\\*bold\\*" in text
    assert "\\_under\\_" in text


def test_a_cpu_session(catalog):
    text = markdown_report(SessionState.of(cpu_history()), cpu_request(), catalog)
    assert text.splitlines()[2].startswith(
        "One setting makes Sequential training 1.19x (1.17–1.21) as fast on AMD EPYC"
    )
    assert "No NVIDIA driver is installed" in text
    assert "peak resident set" in text


@pytest.mark.parametrize("render", [markdown_report, html_report])
@pytest.mark.parametrize(
    ("history", "words"),
    [
        ([], "Nothing has been measured."),
        (failed_history(), "mymodel has no &#x27;build&#x27;|mymodel has no 'build'"),
        (cancelled_history(), "did not run to its end"),
    ],
)
def test_a_session_that_did_not_get_there(catalog, render, history, words):
    assert re.search(words, render(SessionState.of(history), sample_request(), catalog))


def test_a_stack_that_is_not_faster_is_not_sold_as_one(catalog):
    state = SessionState.of(sample_history())
    state.stack = replace(state.stack, comparison=Comparison(1.001, 0.998, 1.004, 0.006), confirmed=False)
    text = markdown_report(state, sample_request(), catalog)
    assert text.splitlines()[2] == (
        "Of 9 candidates for ResNet training on 1 x NVIDIA H200, 4 measured faster; together they are not measurably "
        "faster."
    )
    assert "no measurable difference, not confirmed" in text
