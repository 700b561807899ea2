from dataclasses import replace

import pytest
from facts import GIB, gpu_facts

from advisor.experiment.consent import Consent
from advisor.experiment.control import Decision
from advisor.experiment.ranking import fills_the_device, recommend
from advisor.judging.objective import Goal, Yardstick
from advisor.recipe.catalog import load_catalog
from advisor.records.kinds import Mode, Numerics, Objective, Outcome
from advisor.records.trials import BaselineRecord, Block, Candidate, Comparison, TrialRecord, TrialResult

CATALOG = load_catalog()
FACTS = gpu_facts(device_memory_bytes=100 * GIB)


def by(objective=Objective.THROUGHPUT, **goal):
    """What results are held against: 100 samples/s and 10 GiB."""
    baseline = TrialResult(Outcome.MEASURED, blocks=(Block(10, 10, 0.1),), peak_reserved_bytes=10 * GIB)
    return Yardstick(Goal(objective, **goal), BaselineRecord(baseline, 10.0, 100.0, half_width=0.005))


def record(recipe, value, rate, *, peak_bytes=10 * GIB):
    """A candidate's record at this many samples per second, where the baseline has 100."""
    candidate = Candidate(recipe, CATALOG[recipe].key, value)
    result = TrialResult(Outcome.MEASURED, blocks=(Block(10, 10, 10 / rate),), peak_reserved_bytes=peak_bytes)
    comparison = Comparison(rate / 100, rate / 101, rate / 99)
    return TrialRecord(candidate, candidate.settings, result, comparison, samples_per_s=rate, step_ms=1e3 / rate)


def recommended(records, yardstick, stack=None, **decisions):
    """What is recommended under these decisions."""
    consent = Consent(CATALOG, Mode.TRAIN, yardstick.goal.allow, decisions)
    return recommend(FACTS, records, yardstick, stack or {}, consent)


def names(records):
    return [found.candidate.name for found in records]


def test_the_fastest_value_stands_for_a_recipe_and_the_fastest_recipe_comes_first():
    records = [record("tf32", "high", 130), record("autocast", "bfloat16", 150), record("autocast", "float16", 160)]
    assert names(item.record for item in recommended(records, by())) == ["autocast=float16", "tf32=high"]


def test_of_numbers_the_smallest_that_is_nearly_as_fast():
    sizes = [record("batch_size", size, rate) for size, rate in ((64, 140), (128, 198), (256, 200), (512, 201))]
    assert names(item.record for item in recommended(sizes, by())) == ["batch_size=128"]


@pytest.mark.parametrize(("peak_gib", "fits"), [(80, True), (95, False)])
def test_a_batch_that_fills_the_device_is_not_recommended(peak_gib, fits):
    full = record("batch_size", 256, 200, peak_bytes=peak_gib * GIB)
    assert fills_the_device(FACTS, full.settings, full.result) is not fits
    assert bool(recommended([full], by(allow=Numerics.CHANGED))) is fits
    other = replace(full, candidate=Candidate("tf32", "precision.float32_matmul", "high"))
    assert not fills_the_device(FACTS, other.candidate.settings, other.result)


COMPILED = {"compile.mode": "default", "step.cuda_graph": True}


def on_top(*contribution):
    """The record of a compilation in a stack of 4 times, to which it contributed so much."""
    return replace(record("compile", "default", 400), settings=COMPILED, contribution=Comparison(*contribution))


@pytest.mark.parametrize(
    ("stack", "decisions", "shown"),
    [
        pytest.param(COMPILED, {}, True, id="it stayed"),
        pytest.param({"step.cuda_graph": True}, {}, False, id="it did not stay"),
        pytest.param({"compile.mode": "max-autotune", "step.cuda_graph": True}, {}, False, id="another value stayed"),
        pytest.param({"step.cuda_graph": True}, {"compile": Decision.REJECTED}, True, id="it was rejected"),
    ],
)
def test_what_the_stack_did_with_it_is_not_its_own_merit(stack, decisions, shown):
    ranked = recommended([on_top(1.3, 1.25, 1.35)], by(), stack, **decisions)
    assert names(item.record for item in ranked) == ["compile=default"] * shown


@pytest.mark.parametrize(("alone", "first"), [(1.4, "autocast=bfloat16"), (1.05, "compile=default")])
def test_the_ranked_list_is_made_of_contributions_and_of_what_was_measured_alone(alone, first):
    """A setting that raises a stack from 3x to 4x gains a third: it is ranked by that, not by the stack's speed."""
    ranked = recommended([on_top(1.33, 1.30, 1.36), record("autocast", "bfloat16", 100 * alone)], by(), COMPILED)
    assert names(item.record for item in ranked)[0] == first
    assert len(ranked) == 2


def test_a_member_of_the_stack_is_listed_though_its_contribution_is_within_the_noise_and_when_it_is_rejected():
    whole = {"optimizer.implementation": "fused", "step.cuda_graph": True}
    little = Comparison(1.0, 0.99, 1.01)
    member = replace(record("fused_optimizer", "fused", 300), settings=whole, contribution=little)
    unknown = replace(record("step_graph", True, 300), settings=whole)
    ranked = recommended([member, unknown, record("tf32", "high", 110)], by(), whole)
    assert names(item.record for item in ranked)[0] == "tf32=high"
    assert {item.record.candidate.recipe for item in ranked if item.in_stack} == {"fused_optimizer", "step_graph"}
    assert names(item.record for item in recommended([member], by(), {})) == []
    rejected = recommended(
        [member, record("tf32", "high", 90)], by(), fused_optimizer=Decision.REJECTED, tf32=Decision.REJECTED
    )
    assert names(item.record for item in rejected) == ["fused_optimizer=fused"]


def test_with_memory_as_the_objective_savings_are_ranked_and_keep_the_speed():
    records = [
        record("autocast", "bfloat16", 150, peak_bytes=7 * GIB),
        record("checkpointing", "blocks", 93, peak_bytes=4 * GIB),
        record("optimizer_memory", "adafactor", 70, peak_bytes=3 * GIB),
        record("channels_last", "channels_last", 140),
        record("step_graph", True, 400, peak_bytes=12 * GIB),
        record("tf32", "high", 100),
    ]
    ranked = recommended(records, by(Objective.MEMORY))
    assert names(item.record for item in ranked) == [
        "checkpointing=blocks",
        "autocast=bfloat16",
        "channels_last=channels_last",
    ]
    assert [item.rank for item in ranked] == [1, 2, 3]
