import pytest

from advisor.records import ClockCheck
from advisor.report.evidence import clock_sentences


def said(**clocks):
    return " ".join(clock_sentences(ClockCheck(**clocks)))


def test_a_naive_clock_that_timed_the_launches():
    text = said(naive_ms=0.21, synchronized_ms=13.1, block_ms=12.8, events_ms=12.75)
    assert "claims 0.21 ms, 61 times too fast: it timed the launches, not the work." in text
    assert "from an empty queue" in text
    assert "13.1 ms: about right" in text
    assert "12.8 ms" in text


def test_a_naive_clock_that_is_right_by_luck():
    text = said(naive_ms=3.1, synchronized_ms=4.5, block_ms=3.0, events_ms=3.0)
    assert "happens to be right" in text
    assert "50 % more than a step takes" in text


def test_a_naive_clock_that_reads_too_much():
    text = said(naive_ms=8.0, synchronized_ms=6.5, block_ms=3.0, events_ms=3.0)
    assert "8.00 ms, 2.7 times what a step takes" in text
    assert "too fast" not in text


def test_on_the_cpu_there_is_nothing_to_wait_for():
    text = said(naive_ms=8.1, synchronized_ms=8.2, block_ms=8.0)
    assert "8.10 ms, and 8.20 ms in a second run" in text
    assert "launches" not in text


@pytest.mark.parametrize("events_ms", [None, 3.0])
@pytest.mark.parametrize("naive_ms", [0.01, 2.8, 3.0, 20.0])
def test_two_to_four_sentences(naive_ms, events_ms):
    sentences = clock_sentences(ClockCheck(naive_ms, 3.0, 3.0, events_ms))
    assert 2 <= len(sentences) <= 4
    assert all(sentence.endswith(".") for sentence in sentences)
