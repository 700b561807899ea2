"""The ranked settings: one baseline, every speed-up the quotient of its two step times, and no empty cell."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import tui_histories as histories

from advisor.experiment.control import Decision
from advisor.experiment.events import Decided, Event, TrialMeasured
from advisor.experiment.state import SessionState
from advisor.records import Comparison, Outcome, TrialResult
from advisor.report.rows import Against, Figures, Tick, ranking
from advisor.report.settings import setting_sections


def moments(history: list[Event]) -> Iterator[SessionState]:
    """The session's state after each of its events, while it runs and when it is finished."""
    state = SessionState()
    for event in history:
        state.apply(event)
        yield state


def exported(state: SessionState) -> set[str]:
    """The candidates whose values the combination has."""
    return {name for name, one in state.candidates.items() if state.stack_settings.get(one.key) == one.value}


@pytest.fixture
def state() -> SessionState:
    return SessionState.of(histories.whole())


@pytest.mark.parametrize("name", histories.SESSIONS)
def test_every_speed_up_is_the_quotient_of_its_step_times_and_no_cell_is_empty(name):
    for state in moments(histories.SESSIONS[name]):
        found, rows = ranking(state), ranking(state).every
        for row in rows:
            record = state.trials.get(row.key)
            assert (row.figures is not None) == (record is not None and record.result.measured)
            assert row.figures.memory_bytes[1] is not None if row.figures else row.running or row.note
        shown = [row.figures for row in rows] + [found.together]
        for figures in filter(None, shown):
            assert figures.before_ms / figures.after_ms == pytest.approx(figures.effect.speedup)
            if figures.against is Against.BASELINE:  # there is one baseline
                assert figures.before_ms == found.step_ms
        for row in found.every if found.together else ():  # and one step time with the combination
            if row.figures and row.figures.against is not Against.BASELINE:
                step_ms = row.figures.after_ms if row.key in exported(state) else row.figures.before_ms
                assert step_ms == pytest.approx(found.together.after_ms)


def test_a_setting_measured_with_others_only_has_their_step_with_and_without_it(state):
    record = state.trials["autocast=bfloat16"]
    contribution = Comparison(1.25, 1.2, 1.3)
    in_one_run = Comparison(1.8, 1.5, 2.1)  # of the same settings, before they took turns with the baseline
    together = replace(
        record,
        settings=dict(state.stack_settings),
        comparison=in_one_run,
        contribution=contribution,
        result=state.stack.result,
    )
    state.apply(TrialMeasured(together))
    figures = ranking(state).row("autocast=bfloat16").figures
    assert figures.against is Against.REST
    assert figures.after_ms == pytest.approx(ranking(state).together.after_ms)
    assert figures.before_ms == pytest.approx(1.25 * figures.after_ms)
    assert figures.memory_bytes[1] == state.stack.result.peak_reserved_bytes
    state.apply(TrialMeasured(replace(together, contribution=None)))
    figures = ranking(state).row("autocast=bfloat16").figures
    assert figures.against is Against.NOT_SPLIT
    assert figures.effect == state.stack.comparison


def test_values_of_one_setting_are_folded_under_the_best(state):
    batches = next(row for row in ranking(state).rows if row.candidate.recipe == "batch_size")
    assert batches.candidate.value == 256
    assert [value.candidate.value for value in batches.values] == [128, 4096]
    assert batches.values[-1].figures is None
    assert "allocate" in batches.values[-1].note


def test_what_only_helps_judging_has_no_row(state):
    assert all(row.candidate.recipe != "control" for row in ranking(state).every)


def test_what_does_not_apply_is_one_line(state):
    (fold,) = ranking(state).folds
    assert fold.key == "skipped"
    assert dict(fold.entries) == histories.SKIPPED


def test_what_waits_is_one_line_until_the_end():
    state = SessionState.of(histories.to_trials())
    waiting = next(fold for fold in ranking(state).folds if fold.key == "untried")
    assert state.running not in dict(waiting.entries)
    assert {name for name, _ in waiting.entries} == set(state.candidates) - set(state.trials) - {state.running}


def test_a_star_is_recommended_and_the_tick_is_what_is_exported(state):
    for row in ranking(state).every:
        assert row.star == (row.tick is Tick.ON) == (row.key in exported(state))


def test_what_a_person_accepts_waits_and_then_is_exported_or_refused_with_the_reason():
    state = SessionState.of([*histories.whole(), Decided("num_workers", Decision.ACCEPTED)])
    name = "num_workers=4"
    assert next(row for row in ranking(state, working=True).rows if row.key == name).tick is Tick.WAITING
    refused = ranking(state).row(name)
    assert refused.tick is Tick.REFUSED
    assert refused.note == state.stack.dropped["data.num_workers"]
    state.measured_stack = replace(state.stack, settings={**state.stack.settings, "data.num_workers": 4})
    assert ranking(state).row(name).tick is Tick.ON


@pytest.mark.parametrize("history", [histories.whole(), histories.contributed()], ids=["alone", "with others"])
def test_what_a_person_rejects_leaves_at_once_and_rescales_nothing_that_was_measured(history):
    state = SessionState.of(history)
    before = ranking(state)
    state.apply(Decided("autocast", Decision.REJECTED))
    row = ranking(state).row("autocast=bfloat16")
    assert ranking(state).step_ms == before.step_ms
    assert {one.key: one.figures for one in ranking(state).every} == {one.key: one.figures for one in before.every}
    assert (row.tick, row.rejected, row.star) == (Tick.OFF, True, False)
    assert ranking(state).together is None
    assert "rejected" in ranking(state).pending


def test_another_batch_size_is_told_for_as_many_samples(state):
    figures = ranking(state).row("batch_size=256").figures
    assert figures.samples == 64
    assert figures.after_ms == pytest.approx(figures.before_ms / 1.163)


def test_before_the_baseline_there_is_nothing():
    found = ranking(SessionState.of(histories.start()))
    assert (found.rows, found.together, found.step_ms) == ((), None, None)


def test_a_failed_setting_says_why(state):
    record = state.trials["compile=max-autotune-no-cudagraphs"]
    failed = TrialResult(Outcome.FAILED, "no kernel", "Try another mode.")
    state.apply(TrialMeasured(replace(record, result=failed, comparison=None)))
    row = ranking(state).row(record.candidate.name)
    assert row.figures is None
    assert row.note == "failed: no kernel. Try another mode."


def test_a_note_on_ones_own_settings_stands_on_no_other_card(state):
    row, notes = ranking(state).rows[0], ("a batch of 32 samples", "2 graph breaks")
    state.baseline = replace(state.baseline, result=replace(state.baseline.result, notes=notes[:1]))
    noted = replace(row, record=replace(row.record, result=replace(row.record.result, notes=notes)))
    facts = setting_sections(noted, state, None)[0].blocks[0]
    assert [text for name, text in facts.rows if name == "Note"] == ["2 graph breaks"]


def test_words_have_the_sign_of_what_they_are_against():
    effect = Comparison(1.51, 1.45, 1.57)
    words = [Figures(10.0, effect, against=against).words for against in Against]
    assert [word.partition("1.51x")[0] for word in words] == ["", "+", "in "]
