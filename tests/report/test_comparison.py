"""The comparison of two sessions."""

from dataclasses import replace

import pytest
from msgspec import structs
from sample_session import cancelled_history, cpu_history, cpu_request, failed_history, sample_history, sample_request

from advisor.experiment import events
from advisor.experiment.state import SessionState
from advisor.figures.formatting import MISSING
from advisor.report.comparison import Measured, comparison_sections, summary

BEFORE, AFTER = range(2)


def side(history, request=None, name="one"):
    return Measured(name, request or sample_request(), SessionState.of(history))


def by_title(one, other):
    """The rows of each section, by what they are about."""
    sections = comparison_sections(one, other)
    return {section.title: {row[0]: row[1:] for row in section.blocks[0].rows} for section in sections}


def changed(history, kind, **fields):
    """The history with every event of a kind changed."""

    def change(event):
        return structs.replace(event, **{name: make(event) for name, make in fields.items()})

    return [change(event) if isinstance(event, kind) else event for event in history]


def test_the_same_session_twice_differs_in_nothing():
    found = by_title(side(sample_history()), side(sample_history()))
    assert set(found) == {"Baseline", "Combination"}
    assert all(row[BEFORE] == row[AFTER] for rows in found.values() for row in rows.values())
    assert "within the intervals" in summary(side(sample_history()), side(sample_history()))


def test_a_slower_baseline_is_told_in_the_summary():
    slower = changed(
        sample_history(),
        events.BaselineMeasured,
        baseline=lambda event: replace(
            event.baseline, step_ms=event.baseline.step_ms * 2, samples_per_s=event.baseline.samples_per_s / 2
        ),
    )
    step = by_title(side(sample_history()), side(slower))["Baseline"]["Step"]
    assert step[BEFORE] != step[AFTER]
    assert "The baseline became 2.00x slower" in summary(side(sample_history()), side(slower))


def test_versions_machine_options_and_settings_are_told():
    one, other = sample_history(), sample_history()
    facts = [event for event in other if isinstance(event, events.FactsFound)][-1].facts
    newer = changed(other, events.FactsFound, facts=lambda event: replace(facts, versions={"torch": "9.9"}))
    newer = changed(
        newer,
        events.StackMeasured,
        record=lambda event: replace(event.record, settings={"precision.autocast": "float16"}),
    )
    accept = (("autocast", None), ("batch_size", 64))
    key_map = {"data.num_workers": "loader.jobs"}
    request = replace(sample_request(), only=("autocast", "compile"), accept=accept, key_map=key_map)
    found = by_title(side(one), side(newer, request))
    assert found["Versions"]["torch"][AFTER] == "9.9"
    assert {name: row[AFTER] for name, row in found["Options"].items()} == {
        "only": "autocast, compile",
        "accept": "autocast, batch_size=64",
        "key_map": "data.num_workers=loader.jobs",
    }
    assert found["Settings of the combination"]["precision.autocast"][AFTER] == "float16"
    assert MISSING in {row[AFTER] for row in found["Settings of the combination"].values()}


def test_different_targets_stand_side_by_side_without_a_ratio():
    one, other = side(sample_history()), side(cpu_history(), cpu_request())
    assert "no ratio is given" in summary(one, other)
    found = by_title(one, other)
    assert {"Target", "Model", "Loop"} <= set(found["Workload"])
    assert MISSING in {row[AFTER] for row in found["Settings"].values()}


@pytest.mark.parametrize("history", [failed_history, cancelled_history, list])
def test_sessions_without_results_are_compared_too(history):
    one, other = side(sample_history()), side(history(), name="broken")
    for before, after in ((one, other), (other, one), (other, other)):
        assert summary(before, after)
        list(comparison_sections(before, after))
