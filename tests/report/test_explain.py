import pytest

from advisor.records import ClockCheck
from advisor.report.evidence import clock_findings


def found(**clocks):
    return " ".join(clock_findings(ClockCheck(**clocks)))


def test_a_naive_clock_that_timed_the_launches():
    assert "0.21 ms, 61x too fast" in found(naive_ms=0.21, synchronized_ms=13.1, block_ms=12.8, events_ms=12.75)


def test_single_steps_that_disagree_with_what_is_reported_raise_an_alarm():
    told = found(naive_ms=600.0, synchronized_ms=600.0, block_ms=62.0)
    assert "600 ms" in told
    assert "62.0 ms" in told


@pytest.mark.parametrize("events_ms", [None, 3.0])
@pytest.mark.parametrize("naive_ms", [2.8, 3.0, 20.0])
def test_clocks_that_agree_have_nothing_to_say(naive_ms, events_ms):
    assert clock_findings(ClockCheck(naive_ms, 4.5, 3.0, events_ms)) == ()


def test_on_the_cpu_no_clock_is_too_fast():
    assert clock_findings(ClockCheck(0.01, 3.0, 3.0, None)) == ()


def test_a_session_without_clocks_has_none():
    assert clock_findings(None) == ()
