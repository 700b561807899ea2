"""Ladders: when the next value is tried, and why the larger ones are not."""

from dataclasses import replace

import pytest
from facts import gpu_facts, loader_facts
from made_up import failed, known_of, result_at

from advisor.experiment.moves import is_next_rung, why_not
from advisor.records import Outcome, TrialResult

OUT_OF_MEMORY = TrialResult(Outcome.OUT_OF_MEMORY)


def climbed(*results, down=False):
    """Knowledge of a ladder of workers after trials of its first values, a speed or a result each, and the next one."""
    known = known_of(gpu_facts(loader=loader_facts(num_workers=0)))
    rungs = sorted((c for c in known.plan.candidates if c.recipe == "num_workers"), key=lambda c: c.value, reverse=down)
    known, judge = replace(known, plan=replace(known.plan, candidates=tuple(rungs))), known.judge
    for rung, result in zip(rungs, results, strict=False):
        judge = judge.with_run(rung.settings, result if isinstance(result, TrialResult) else result_at(result))
    return replace(known, judge=judge), rungs[len(results)], rungs[len(results) - 1].name


@pytest.mark.parametrize(
    ("results", "down", "goes_on"),
    [
        ((1.2,), False, True),
        ((0.9,), False, False),
        ((1.2, 1.3), False, True),
        ((1.2, 1.205), False, False),
        ((1.2, 1.205), True, True),
        ((1.2, 1.1), True, False),
        ((OUT_OF_MEMORY,), False, False),
        ((OUT_OF_MEMORY,), True, True),
        ((failed("it ended"),), True, False),
    ],
)
def test_a_ladder_goes_on_until_a_value_is_no_better_than_those_before(results, down, goes_on):
    known, candidate, _ = climbed(*results, down=down)
    assert is_next_rung(known, candidate) is goes_on


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (OUT_OF_MEMORY, "ran out of memory, so larger values would too"),
        (failed("it ended"), "failed: it ended"),
        (0.9, "was no better than the value before it"),
    ],
)
def test_why_a_ladder_has_ended_is_said(result, reason):
    known, candidate, last = climbed(result)
    assert why_not(known, candidate) == f"{last} {reason}"
