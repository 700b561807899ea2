"""The headless reporter on recorded sessions, and a whole headless run with a session that plays one back."""

# ruff: noqa: RUF001 - the en dash stands between the ends of an interval

import io
from dataclasses import replace

import pytest
from msgspec import structs
from sample_session import (
    CONTRIBUTION,
    cancelled_history,
    detailed_history,
    failed_history,
    on_the_stack,
    sample_history,
)

from advisor.experiment import events
from advisor.experiment.state import SessionState
from advisor.headless.run import HeadlessReporter
from advisor.recipe.catalog import load_catalog
from advisor.report.terminal import print_sections
from advisor.report.whole import summary_sections


def progress_of(history):
    file = io.StringIO()
    reporter = HeadlessReporter(file)
    for event in history:
        reporter.handle(event)
    return file.getvalue().splitlines()


def summary_of(history, state=None):
    file = io.StringIO()
    print_sections(summary_sections(state or SessionState.of(history), load_catalog()), file)
    return file.getvalue()


def first(kind, name=""):
    """The first event of a kind in the sample, of the trial of this name where one is given."""
    found = (event for event in sample_history() if isinstance(event, kind))
    return next(event for event in found if not name or event.record.candidate.name == name)


def test_a_finished_trial_is_one_line_with_progress_interval_and_verdict():
    lines = progress_of(sample_history())
    assert "[ 18 %, 1 min 36 s left] autocast=bfloat16  1.12x (1.11–1.13) faster" in lines
    assert "[ 36 %, 1 min 12 s left] cudnn_benchmark=true  same" in lines
    assert sum("compile=max-autotune  out of memory: " in line for line in lines) == 1


def test_findings_are_not_counted_before_it_is_known_which_of_them_matter():
    read = first(events.SourceRead)
    assert read.findings
    assert progress_of([read])[0] == "[  0 %] read 2 files of your source, for habits that cost time"


def test_a_stack_that_is_told_again_is_a_line_only_when_it_reads_otherwise():
    stack = first(events.StackMeasured)
    confirmed = structs.replace(stack, record=replace(stack.record, confirmed=not stack.record.confirmed))
    history = [event for event in sample_history() if not isinstance(event, events.StackMeasured)]
    lines = [line for line in progress_of([*history, stack, stack, confirmed, stack]) if "] together: " in line]
    assert len(lines) == 3


def test_the_share_never_falls_and_only_the_end_is_all_of_it():
    back = [events.ProgressMade(share, 9.0) for share in (0.4, 1.0, 0.2)]
    lines = progress_of([*(line for event in back for line in (event, events.Said("so"))), sample_history()[-1]])
    assert [line[:7] for line in lines] == ["[ 40 %,", "[ 99 %,", "[ 99 %,", "[100 %]"]
    assert progress_of([back[0], cancelled_history()[-1]]) == ["[ 40 %] interrupted after 19.0 s"]


def test_what_a_candidate_contributes_to_the_stack_is_a_line_once_it_is_known():
    record = first(events.TrialMeasured).record
    told = [events.TrialMeasured(on_the_stack(record, known)) for known in (None, CONTRIBUTION, CONTRIBUTION)]
    (line,) = progress_of(told)
    assert line.endswith(f"{record.candidate.name}  1.20x (1.15–1.25) on the stack, faster")


def test_a_record_told_again_is_a_line_only_when_it_reads_otherwise():
    told = first(events.TrialMeasured, "autocast=bfloat16")
    noisier = replace(told.record.comparison, ci_low=0.95)
    changed = events.TrialMeasured(replace(told.record, comparison=noisier))
    lines = progress_of([told, told, changed])
    assert len(lines) == 2
    assert lines[1].endswith("unclear")


def test_the_summary_ranks_and_explains():
    text = summary_of(sample_history())
    ranking = text.partition("\nSettings, best first\n")[2].partition("\n\n")[0]
    ranked = [line.split()[0] for line in ranking.splitlines()[1:5]]
    assert ranked == ["model.memory_format:", "precision.autocast:", "data.batch_size:", "optimizer.implementation:"]
    for words in (
        "1.39x (1.38–1.40)",
        "1.97x (1.96–1.98) with 3 settings, confirmed",
        "step.zero_grad: slower on top of the others",
        "no step ended within 60 s",
        "data wait is 0.3 % of the step",
    ):
        assert words in text


@pytest.mark.parametrize("width", [80, 100])
def test_the_summary_is_plain_and_narrow_without_a_terminal(width, monkeypatch):
    monkeypatch.setattr("advisor.report.terminal.PLAIN_WIDTH", width)
    text = summary_of(detailed_history())
    assert "\x1b" not in text
    assert "…" not in text
    assert all(len(line) <= width and line == line.rstrip() for line in text.splitlines())
    for words in ("channels_last", "1.019x (1.014–1.023)", "train.py:41", "(0.970–0.978)"):
        assert words in text


def test_a_failed_session_has_no_summary():
    assert summary_of(failed_history()) == ""
