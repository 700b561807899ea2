"""The rule of consent, case by case: settings that may be used without asking, and settings that may not."""

from dataclasses import replace

import pytest

from advisor.experiment.consent import Consent
from advisor.experiment.control import REJECTED, Decision
from advisor.recipe.catalog import load_catalog
from advisor.records import Candidate, Mode, Numerics, NumericsResult, Score

CATALOG = load_catalog()
ACCEPTED = Decision.ACCEPTED
EXACT, CLOSE, CHANGED = Numerics
GRADS = Candidate("zero_grad", "step.zero_grad", "manual")  # declares exact
BF16 = Candidate("autocast", "precision.autocast", "bfloat16")  # declares close
BATCH = Candidate("batch_size", "data.batch_size", 128)  # declares changed
TOGETHER = {**GRADS.settings, **BF16.settings}


def consent(allow=CLOSE, **decisions):
    return Consent(CATALOG, Mode.TRAIN, allow, decisions)


def measured(numerics, declared=CLOSE, *, as_baselines=False):
    return NumericsResult(numerics, declared, 0.5, "the losses differ by a half", as_baselines=as_baselines)


@pytest.mark.parametrize("allow", Numerics)
@pytest.mark.parametrize(("candidate", "declared"), [(GRADS, EXACT), (BF16, CLOSE), (BATCH, CHANGED)])
def test_what_declares_no_more_than_is_allowed_needs_no_word(allow, candidate, declared):
    free = declared.severity <= allow.severity
    assert consent(allow).permits(candidate.settings) is free
    assert consent(allow).needs_consent(candidate) is not free
    assert consent(allow).exceeds(candidate, None) is not free
    assert (f"{candidate.recipe} changes results" in consent(allow).why_not(candidate.settings)) is not free


@pytest.mark.parametrize("allow", Numerics)
def test_what_was_accepted_may_change_what_it_declares(allow):
    agreed = consent(allow, batch_size=ACCEPTED, autocast=ACCEPTED)
    for candidate in (BF16, BATCH):
        assert agreed.permits(candidate.settings)
        assert not agreed.needs_consent(candidate)
    assert agreed.permits({**BF16.settings, **BATCH.settings})


@pytest.mark.parametrize("allow", Numerics)
def test_what_was_rejected_is_never_used(allow):
    refused = consent(allow, zero_grad=Decision.REJECTED, autocast=ACCEPTED)
    assert refused.why_not(GRADS.settings) == refused.why_not(TOGETHER) == REJECTED
    assert refused.rejects("zero_grad")
    assert not refused.rejects("autocast")
    assert refused.permits(BF16.settings)


def test_a_recipe_is_asked_in_the_mode_of_the_workload():
    """Half-precision weights train something else; in inference they only round."""
    half = Candidate("half_weights", "precision.weights", "bfloat16")
    assert [Consent(CATALOG, mode, CLOSE).needs_consent(half) for mode in (Mode.TRAIN, Mode.INFER)] == [True, False]


@pytest.mark.parametrize("allow", Numerics)
@pytest.mark.parametrize("shown", Numerics)
def test_what_was_measured_to_change_more_than_is_allowed_may_not_be_used(allow, shown):
    """A recipe declares exact, but its measured class decides."""
    found = measured(shown, EXACT)
    free = shown.severity <= allow.severity
    assert consent(allow).permits(GRADS.settings, found) is free
    assert consent(allow).exceeds(GRADS, found) is not free
    if not free:
        assert consent(allow).why_not(GRADS.settings, found) == f"the numerics are {shown}: {found.text}"


def test_what_differs_no_more_than_two_baselines_do_counts_as_declared():
    found = measured(CHANGED, EXACT, as_baselines=True)
    assert consent(EXACT).permits(GRADS.settings, found)
    assert not consent(EXACT).exceeds(GRADS, found)


def test_a_measurement_does_not_excuse_what_is_declared():
    """A larger batch is another training, even if its first losses happen to be equal."""
    found = measured(EXACT, CHANGED)
    assert not consent().permits(BATCH.settings, found)
    assert consent().exceeds(BATCH, found)


def test_accepting_a_recipe_covers_its_declaration_not_a_fault():
    agreed = consent(EXACT, autocast=ACCEPTED)
    assert agreed.permits(BF16.settings, measured(CLOSE))
    assert not agreed.permits(BF16.settings, measured(CHANGED))
    assert agreed.exceeds(BF16, measured(CLOSE)), "accepted or not: it is shown as what needed consent"


def test_accepting_a_recipe_covers_what_it_was_seen_to_change():
    """The person saw the measured class beside the recipe when they accepted it."""
    agreed = consent(EXACT, autocast=ACCEPTED)
    for settings in (BF16.settings, TOGETHER):
        assert agreed.why_not(settings, measured(CHANGED))
        assert not agreed.why_not(settings, measured(CHANGED), seen=[CHANGED])


STATE = Candidate("optimizer_memory", "optimizer.state", "8bit")  # declares changed
GOOD, BAD = Score(0.9, baseline=0.91), Score(0.5, baseline=0.91, problem="the score falls")


def by_score(**decisions):
    return Consent(CATALOG, Mode.TRAIN, CLOSE, decisions, by_score=True)


def scored(score):
    return replace(measured(CHANGED, CHANGED), score=score)


def test_what_changes_results_may_be_tried_and_is_used_for_its_score():
    assert by_score().permits(STATE.settings)
    assert not by_score().needs_consent(STATE)
    assert by_score().why_not(STATE.settings, scored(None)), "it was not scored"
    assert [by_score().exceeds(STATE, scored(one)) for one in (None, GOOD, BAD)] == [True, False, True]
    for candidate in (STATE, BF16):  # declared, or only measured, to change more than is allowed
        assert not by_score().why_not(candidate.settings, scored(GOOD))
        assert by_score().why_not(candidate.settings, scored(BAD)) == "the score falls"


def test_the_word_of_the_person_comes_before_the_score():
    assert by_score(optimizer_memory=ACCEPTED).permits(STATE.settings, scored(BAD))
    assert by_score(optimizer_memory=Decision.REJECTED).why_not(STATE.settings, scored(GOOD)) == REJECTED


def test_no_score_permits_batches_of_another_size():
    """The caller has to give such batches, so no score can decide."""
    assert by_score().needs_consent(BATCH)
    assert not by_score().permits(BATCH.settings)
    assert not by_score().permits(BATCH.settings, scored(GOOD))
