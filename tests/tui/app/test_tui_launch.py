"""What the app leaves in the terminal."""

import tui_histories as histories

from advisor.experiment import events
from advisor.experiment.state import SessionState
from advisor.tui.leaving import closing_words


def test_the_closing_words_have_the_result_and_count_the_trials() -> None:
    state = SessionState.of([event for event in histories.to_trials() if not isinstance(event, events.TrialMeasured)])
    state.apply(events.TrialMeasured(histories.CONTROL))
    assert next(closing_words(state, "1")) == "The baseline is kept in session 1.", "the control is nobody's candidate"
    state.apply(events.TrialMeasured(histories.ZERO_GRAD))
    assert next(closing_words(state, "1")) == "The baseline and 1 trial are kept in session 1."
    first = next(closing_words(SessionState.of(histories.whole()), "1"))
    assert first.startswith("Result: 2.35x")
    assert "32.6 → 13.9 ms a step" in first


def test_nothing_measured_is_said_in_the_closing_words() -> None:
    assert list(closing_words(SessionState.of(histories.failure()), "1")) == [], "the command line prints the error"
    assert list(closing_words(SessionState(), "1")) == ["Nothing was measured."]
    kept = ["Nothing more was measured.", "Open it again with: perf-advisor open 1"]
    assert list(closing_words(SessionState(), "1", kept_trials=3)) == kept
