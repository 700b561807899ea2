"""The meaning of measurements, in plain sentences. Pure functions, shared by the app and the reports."""

from __future__ import annotations

from advisor.figures.formatting import format_ms, format_percent
from advisor.records import ClockCheck

# Clocks within this of each other say the same.
_ALIKE = 0.1


def clock_sentences(clock: ClockCheck) -> tuple[str, ...]:
    """The reading of each clock and why they differ, two to four sentences."""
    if clock.events_ms is None:
        return (_on_cpu(clock), f"{_block(clock)}, with nothing between the steps.")
    return (
        _naive(clock),
        _synchronized(clock),
        f"The device's own events read {format_ms(clock.events_ms)} from one step's end to the next.",
        f"{_block(clock)} and one synchronisation at the end.",
    )


def _on_cpu(clock: ClockCheck) -> str:
    plain, waiting = format_ms(clock.naive_ms), format_ms(clock.synchronized_ms)
    return (
        "On the CPU a call returns when its work is done, so a clock around a step needs no synchronisation: "
        f"it reads {plain}, and {waiting} in a second run."
    )


def _naive(clock: ClockCheck) -> str:
    reading = f"claims {format_ms(clock.naive_ms)}"
    if clock.naive_ms < (1 - _ALIKE) * clock.block_ms:
        return (
            f"A host clock around a step, without synchronisation and from an empty queue, {reading}, "
            f"{_times(clock.block_ms / clock.naive_ms)} too fast: it timed the launches, not the work."
        )
    if clock.naive_ms <= (1 + _ALIKE) * clock.block_ms:
        return (
            f"A host clock around a step, without synchronisation, {reading}, which happens to be right: "
            "here the host takes as long as the device, or waits for it within the step."
        )
    return (
        f"A host clock around a step, without synchronisation, {reading}, {_more(clock.naive_ms, clock.block_ms)} "
        "a step takes: over so few steps it caught something that is no part of most of them."
    )


def _synchronized(clock: ClockCheck) -> str:
    reading = f"With a synchronisation after each step the host reads {format_ms(clock.synchronized_ms)}"
    if clock.synchronized_ms <= (1 + _ALIKE) * clock.block_ms:
        return f"{reading}: about right, for waiting costs little beside this step."
    return (
        f"{reading}, {_more(clock.synchronized_ms, clock.block_ms)} a step takes: while it waits for one step, the "
        "host prepares nothing of the next."
    )


def _block(clock: ClockCheck) -> str:
    return f"The headline is {format_ms(clock.block_ms)}: many steps back to back"


def _times(factor: float) -> str:
    return f"{factor:.0f} times" if factor >= 10 else f"{factor:.1f} times"


def _more(reading: float, truth: float) -> str:
    share = reading / truth - 1
    return f"{_times(1 + share)} what" if share >= 1 else f"{format_percent(share)} more than"
