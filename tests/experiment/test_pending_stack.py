"""A stack that a decision changed, in all that is written of a session: no figure for what was not measured."""

import io
import json

import pytest
from msgspec import structs
from sample_session import sample_history, sample_request

from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.outputs import Outputs
from advisor.experiment.state import SessionState
from advisor.export.formats.markdown import markdown_report
from advisor.export.json_report import json_text
from advisor.export.outputs import write_outputs
from advisor.python.file import python_source
from advisor.recipe.catalog import load_catalog
from advisor.records import Mode, Outcome, Verdict
from advisor.report.conclusions import settings_to_export
from advisor.report.terminal import print_sections
from advisor.report.verdict import result_line, verdict
from advisor.report.whole import summary_sections

AUTOCAST, OTHERS = "precision.autocast", {"model.memory_format", "optimizer.implementation"}
WHY = "not measured since you rejected autocast"


@pytest.fixture
def measured():
    return SessionState.of(sample_history())


@pytest.fixture
def pending(measured):
    measured.apply(events.Decided("autocast", Decision.REJECTED))
    return measured


def summary_of(state):
    file = io.StringIO()
    print_sections(summary_sections(state, load_catalog()), file)
    return " ".join(file.getvalue().split())


def test_the_shown_stack_follows_a_decision_and_its_undoing(measured):
    before, ranked = measured.stack, measured.recommendations
    assert AUTOCAST in before.settings
    measured.apply(events.Decided("autocast", Decision.REJECTED))
    assert set(measured.stack.settings) == OTHERS
    assert (measured.stack.pending, measured.stack.verdict) == (True, Verdict.SKIPPED)
    assert (measured.stack.result.outcome, measured.stack.result.reason) == (Outcome.SKIPPED, WHY)
    assert measured.stack.dropped[AUTOCAST] == "you rejected it"
    assert "autocast" not in {item.record.candidate.recipe for item in measured.recommendations if item.in_stack}
    measured.apply(events.Decided("autocast", None))
    assert (measured.stack, measured.recommendations) == (before, ranked)


def test_reports_give_no_figure(pending):
    catalog = load_catalog()
    assert WHY in verdict(pending)
    text = markdown_report(pending, sample_request(), catalog)
    assert f"There is no figure for them: {WHY}." in text
    assert "you rejected it" in text
    summary = summary_of(pending)
    assert WHY in summary
    assert "together they are not" not in summary
    assert result_line(pending) == f"2 settings, {WHY}"
    told = json.loads(json_text(pending, sample_request()))
    stack = told["stack"]
    assert (stack["outcome"], stack["verdict"], stack["speedup"], stack["reason"]) == ("skipped", "skipped", None, WHY)
    assert told["decisions"]["autocast"] == "rejected"


def test_exports_hold_the_rest_and_say_that_it_has_no_figure(pending, tmp_path):
    assert set(settings_to_export(pending)) == OTHERS
    path = tmp_path / "tuned.yaml"
    written = write_outputs(pending, sample_request(), Outputs(export_path=str(path)), load_catalog())
    assert written.sentences[0] == f"Settings written to {path}: 2 settings, {WHY}."
    assert f"# speed-up: not known: 2 settings, {WHY}\n" in path.read_text(encoding="utf-8")
    assert "precision.autocast" not in python_source(load_catalog(), settings_to_export(pending), Mode.TRAIN)


def test_when_all_is_rejected_nothing_is_left(pending):
    for recipe in ("channels_last", "fused_optimizer"):
        pending.apply(events.Decided(recipe, Decision.REJECTED))
    assert settings_to_export(pending) == {}
    assert result_line(pending) in verdict(pending)
    assert result_line(pending) == "no settings, you rejected all that was in it"


def test_what_came_into_the_stack_untried_can_be_rejected_too(measured):
    assert not measured.can_decide("tf32")
    history = [
        structs.replace(event, recommendations=_without_the_optimizer(event.recommendations))
        if isinstance(event, events.Ranked)
        else event
        for event in sample_history()
        if not (isinstance(event, events.TrialMeasured) and event.record.candidate.recipe == "fused_optimizer")
    ]
    state = SessionState.of(history)
    assert state.finished is not None
    assert not any(record.candidate.recipe == "fused_optimizer" for record in state.trials.values())
    assert state.can_decide("fused_optimizer")
    state.apply(events.Decided("fused_optimizer", Decision.REJECTED))
    assert set(state.stack.settings) == {AUTOCAST, "model.memory_format"}
    assert state.can_decide("fused_optimizer"), "and be taken back in"


def _without_the_optimizer(recommendations):
    return tuple(item for item in recommendations if item.record.candidate.recipe != "fused_optimizer")
