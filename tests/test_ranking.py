from __future__ import annotations

from dataclasses import replace

import pytest
from facts import GIB, gpu_facts

from advisor.catalog import load_catalog
from advisor.records import (
    Block,
    Candidate,
    Comparison,
    Numerics,
    NumericsResult,
    Outcome,
    TrialRecord,
    TrialResult,
)
from advisor.session.control import Decision
from advisor.session.ranking import best_per_recipe, may_enter, recommend

CATALOG = load_catalog()
FACTS = gpu_facts(device_memory_bytes=100 * GIB)


def record(recipe, value, rate, *, peak_bytes=GIB):
    """A candidate's record at this many samples per second, where the baseline has 100."""
    candidate = Candidate(recipe, CATALOG[recipe].key, value)
    result = TrialResult(Outcome.MEASURED, blocks=(Block(10, 10, 10 / rate),), peak_reserved_bytes=peak_bytes)
    comparison = Comparison(rate / 100, rate / 101, rate / 99, 0.005)
    return TrialRecord(candidate, candidate.settings, result, comparison, samples_per_s=rate, step_ms=1e3 / rate)


def test_the_fastest_value_stands_for_a_recipe_and_the_fastest_recipe_comes_first():
    records = [record("tf32", "high", 130), record("autocast", "bfloat16", 150), record("autocast", "float16", 160)]
    assert [best.candidate.name for best in best_per_recipe(records)] == ["autocast=float16", "tf32=high"]


def test_of_numbers_the_smallest_that_is_nearly_as_fast():
    sizes = [record("batch_size", size, rate) for size, rate in ((64, 140), (128, 198), (256, 200), (512, 201))]
    assert [best.candidate.value for best in best_per_recipe(sizes)] == [128]


def test_what_is_not_faster_is_not_recommended():
    assert best_per_recipe([record("tf32", "high", 100), record("control", True, 150)]) == []


@pytest.mark.parametrize(("peak_gib", "fits"), [(80, True), (95, False)])
def test_a_batch_that_fills_the_device_is_neither_recommended_nor_in_the_stack(peak_gib, fits):
    full = record("batch_size", 256, 200, peak_bytes=peak_gib * GIB)
    options = {"allow": Numerics.CHANGED, "memory_limit_bytes": None, "decision": None}
    assert may_enter(CATALOG, FACTS, full, **options) is fits
    assert bool(recommend(CATALOG, FACTS, [full], Numerics.CHANGED, {})) is fits
    other = replace(full, candidate=Candidate("tf32", "precision.float32_matmul", "high"))
    assert may_enter(CATALOG, FACTS, other, **options)


@pytest.mark.parametrize(("decision", "enters"), [(None, False), (Decision.ACCEPTED, True), (Decision.REJECTED, False)])
def test_a_changed_recipe_needs_consent(decision, enters):
    changed = record("batch_size", 128, 180)
    options = {"allow": Numerics.CLOSE, "memory_limit_bytes": None, "decision": decision}
    assert may_enter(CATALOG, FACTS, changed, **options) is enters
    [recommendation] = recommend(CATALOG, FACTS, [changed], Numerics.CLOSE, {"data.batch_size": 128})
    assert recommendation.needs_consent
    assert recommendation.in_stack


@pytest.mark.parametrize(
    ("numerics", "allow", "needs_consent"),
    [
        pytest.param(NumericsResult(Numerics.CHANGED, Numerics.CLOSE, 0.5, ""), Numerics.CLOSE, True, id="a fault"),
        pytest.param(NumericsResult(Numerics.CLOSE, Numerics.EXACT, 1e-6, ""), Numerics.EXACT, True, id="not exact"),
        pytest.param(
            NumericsResult(Numerics.CLOSE, Numerics.EXACT, 1e-6, "", as_baselines=True),
            Numerics.EXACT,
            False,
            id="as the baseline itself",
        ),
    ],
)
def test_what_was_measured_decides_about_consent(numerics, allow, needs_consent):
    graphed = replace(record("step_graph", True, 200), numerics=numerics)
    [recommendation] = recommend(CATALOG, FACTS, [graphed], allow, {})
    assert recommendation.needs_consent is needs_consent
