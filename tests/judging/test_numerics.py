import math

import pytest
from facts import cpu_facts
from hypothesis import given
from hypothesis import strategies as st

from advisor.judging.numerics import (
    DEFAULT_TOLERANCE,
    LOSSES,
    OUTPUTS,
    Spread,
    compare_numerics,
    differences,
    distance,
    explained_by,
    finite,
    own_rounding,
    spread_of,
    tolerances,
    why_unusable,
)
from advisor.recipe.catalog import load_catalog
from advisor.records import Numerics, Outcome, TrialResult

BFLOAT16, FLOAT16, TF32 = 2.0**-8, 2.0**-11, 2.0**-11
CATALOG = load_catalog()
numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=10)
LOSSES_5 = (2.3, 2.2, 2.1, 2.0, 1.9)
OUTPUTS_4 = (6.0, 1.0, 2.0, 3.0)


def result(losses=(), outputs=(), batch_size=8, **others):
    return TrialResult(Outcome.MEASURED, losses=tuple(losses), outputs=tuple(outputs), batch_size=batch_size, **others)


def compared(new, old, declared=Numerics.CLOSE, **context):
    return compare_numerics(result(new), result(old), declared, **context)


def off(values, *shares):
    """The values with relative errors, the last of which goes for all that follow."""
    shares = [*shares, *[shares[-1]] * len(values)]
    return tuple(value * (1 + share) for value, share in zip(values, shares, strict=False))


TRAINED = result(LOSSES_5, OUTPUTS_4)


def trained(losses=0.0, outputs=0.0, **others):
    """A training result with these errors."""
    return result(off(LOSSES_5, losses), off(OUTPUTS_4, outputs), **others)


REFERENCE = trained(3e-8, 2e-7, notes=("float64",))


# --- equal ----------------------------------------------------------------------------------------------------


@given(numbers)
def test_equal_losses_are_exact(losses):
    assert compared(losses, losses).measured is Numerics.EXACT
    assert compared(losses, losses).difference == 0
    assert "equal to the bit" in compared(losses, losses).text


@given(st.floats(1e-9, 1e-5))
def test_equal_losses_of_outputs_that_differ_are_not_exact(share):
    numerics = compare_numerics(trained(outputs=share), TRAINED, Numerics.EXACT)
    assert numerics.measured is Numerics.CLOSE
    assert numerics.worse_than_declared
    assert numerics.difference == pytest.approx(share, rel=1e-3)
    assert "outputs of the first step differ" in numerics.text


# --- tolerances -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "old", "measured"),
    [
        ((2.3 * (1 + 0.9 * DEFAULT_TOLERANCE), 2.2), (2.3, 2.2), Numerics.CLOSE),
        ((2.3 * (1 + 1.1 * DEFAULT_TOLERANCE), 2.2), (2.3, 2.2), Numerics.CHANGED),
        ((2.3, 2.2 * 1.12), (2.3, 2.2), Numerics.CLOSE),  # an update may have made more of a little
        ((2.3, 2.2 * 1.13), (2.3, 2.2), Numerics.CHANGED),
        ((2.3,), (2.3, 9.0), Numerics.EXACT),  # only common steps are compared
        ((2.0, 0.0100), (2.0, 0.0095), Numerics.CLOSE),  # a loss that nearly vanished is seen against the largest
        ((0.0, 0.0), (0.0, 0.0), Numerics.EXACT),
    ],
)
def test_without_a_reference_there_is_one_tolerance(new, old, measured):
    assert compared(new, old).measured is measured


@pytest.mark.parametrize(
    ("quantity", "explained", "own", "allowed"),
    [
        (LOSSES, 0.0, (1e-9, 1e-9, 1e-9), (2.0**-18, 2.0**-15, 2.0**-12)),
        (LOSSES, 0.0, (1e-4, 5e-5, 2e-4), (0.0128, 0.0256, 0.0256)),
        (LOSSES, 0.2, (0.0, 0.0, 0.0), (0.2, 0.4)),
        (LOSSES, 0.9, (0.0,), (0.5,)),
        (OUTPUTS, 0.0, (1e-9,), (2.0**-16,)),
        (OUTPUTS, 0.0, (1e-4,), (8e-4,)),
        (OUTPUTS, 0.0, (), (2.0**-8,)),
        (LOSSES, 0.0, (), (2.0**-8, 2.0**-3, 2.0**-3)),
    ],
)
def test_the_tolerance_of_each_step(quantity, explained, own, allowed):
    assert tolerances(quantity, len(own) or len(allowed), explained, own) == pytest.approx(allowed)


def test_what_the_rounding_of_an_arithmetic_explains():
    assert explained_by(LOSSES, 0.001, 0.0, None) == pytest.approx(0.016)
    assert explained_by(OUTPUTS, 0.001, 0.0, None) == pytest.approx(0.128)
    assert explained_by(OUTPUTS, TF32, 0.0, 1e-9) == pytest.approx(16 * TF32)
    assert explained_by(OUTPUTS, BFLOAT16, 0.0, 40 * 2.0**-24) == pytest.approx(120 * BFLOAT16)
    assert explained_by(OUTPUTS, BFLOAT16, TF32, 10 * TF32) == pytest.approx(30 * BFLOAT16)
    assert explained_by(OUTPUTS, BFLOAT16, TF32, TF32 / 5) == pytest.approx(3 * 2.0**24 * TF32 / 5 * BFLOAT16)


def test_differences_are_relative_and_of_tokens_a_share():
    assert differences(LOSSES, result((2.0, 0.2)), result((2.0, 0.1))) == pytest.approx((0.0, 0.5))
    assert differences(LOSSES, result((4.0,)), result((5.0,))) == pytest.approx((0.2,))
    assert distance((10.0, 1.0, 2.0, 3.0, 4.0), (11.0, 1.0, 2.0, 3.0, 5.0)) == 0.25
    assert distance((0.0, 3.1, 4.0), (0.0, 3.0, 4.0)) == pytest.approx(0.02)
    assert distance((10.1, 3.0, 4.0), (10.0, 3.0, 4.0)) == pytest.approx(0.01)
    assert distance((10.0 + 1e-7, 3.0, 4.0), (10.0, 3.0, 4.0)) == 0.0


# What was measured with real nets (the docstring of ``tolerance``), against a baseline in float32.
@pytest.mark.parametrize(
    ("errors", "rounding", "measured"),
    [
        pytest.param({"losses": 1e-7, "outputs": 1.2e-6}, 0.0, Numerics.CLOSE, id="another layout"),
        pytest.param({"losses": 1e-4, "outputs": 1.3e-3}, TF32, Numerics.CLOSE, id="TensorFloat-32"),
        pytest.param({"losses": 6e-3, "outputs": 1.6e-2}, BFLOAT16, Numerics.CLOSE, id="bfloat16"),
        pytest.param({"losses": 3e-2, "outputs": 3e-2}, BFLOAT16, Numerics.CLOSE, id="deep bfloat16"),
        pytest.param({"losses": 2e-4, "outputs": 1.9e-3}, FLOAT16, Numerics.CLOSE, id="float16"),
        pytest.param({"losses": 7e-7, "outputs": 8e-5}, 0.0, Numerics.CHANGED, id="tanh for erf in GELU"),
        pytest.param({"losses": 3e-4, "outputs": 5e-3}, 0.0, Numerics.CHANGED, id="epsilon"),
        pytest.param({"losses": 2e-3, "outputs": 7e-2}, BFLOAT16, Numerics.CHANGED, id="no bias, in bfloat16"),
    ],
)
def test_rounding_is_told_from_faults(errors, rounding, measured):
    numerics = compare_numerics(trained(**errors), TRAINED, Numerics.CLOSE, rounding=rounding, reference=REFERENCE)
    assert numerics.measured is measured
    assert numerics.worse_than_declared is (measured is Numerics.CHANGED)


# Errors of the outputs of ResNet-50 before its first update, with 16 images on the CPU; TensorFloat-32 was emulated.
@pytest.mark.parametrize(
    ("own", "own_error", "rounding", "error", "measured"),
    [
        pytest.param(0.0, 1.6e-5, 0.0, 7.6e-5, Numerics.CLOSE, id="another layout"),
        pytest.param(0.0, 1.6e-5, BFLOAT16, 0.12, Numerics.CLOSE, id="bfloat16 for float32"),
        pytest.param(TF32, 0.018, BFLOAT16, 0.12, Numerics.CLOSE, id="bfloat16 for TensorFloat-32"),
        pytest.param(TF32, 1.6e-5, 0.0, 0.018, Numerics.CLOSE, id="a layout that TensorFloat-32 can be used in"),
        pytest.param(0.0, 1.6e-5, 0.0, 1e-3, Numerics.CHANGED, id="a fault"),
        pytest.param(TF32, 0.018, 0.0, 0.3, Numerics.CHANGED, id="a fault beside TensorFloat-32"),
    ],
)
def test_a_workload_that_amplifies_rounding_is_measured_by_that(own, own_error, rounding, error, measured):
    context = {"rounding": rounding, "own_rounding": own, "reference": trained(outputs=own_error, notes=("float64",))}
    assert compare_numerics(trained(outputs=error), TRAINED, Numerics.CLOSE, **context).measured is measured


def test_rounding_in_the_losses_may_grow_with_each_update():
    growing = result(off(LOSSES_5, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3), OUTPUTS_4)
    at_once = result(off(LOSSES_5, 5e-5, 0.0), OUTPUTS_4)
    numerics = [compare_numerics(new, TRAINED, Numerics.CLOSE, reference=REFERENCE) for new in (growing, at_once)]
    assert [one.measured for one in numerics] == [Numerics.CLOSE, Numerics.CHANGED]
    assert numerics[1].difference == pytest.approx(5e-5, rel=1e-3)
    assert "at step 1" in numerics[1].text


def test_losses_of_an_unstable_beginning_are_left_out():
    # ResNet-50 with 8 small images: the baseline's losses against float64, and those in another layout.
    unstable = result(off(LOSSES_5, 1e-6, 3e-2, 2e-1, 2e-1, 8e-1), OUTPUTS_4, notes=("float64",))
    other = result(off(LOSSES_5, 6e-7, 3e-2, 4e-3, 5e-2, 1e-2), OUTPUTS_4)
    numerics = compare_numerics(other, TRAINED, Numerics.CLOSE, reference=unstable)
    assert numerics.measured is Numerics.CLOSE
    assert numerics.text.startswith("the losses of the first step differ by 6.0e-07")
    only_later = compare_numerics(
        result(off(LOSSES_5, 0.0, 3e-2), OUTPUTS_4), TRAINED, Numerics.EXACT, reference=unstable
    )
    assert (only_later.measured, only_later.difference) == (Numerics.CLOSE, pytest.approx(3e-2))
    assert only_later.text.startswith("the losses differ by 3.0e-02")
    wrong = result(off(LOSSES_5, 1e-3, 3e-2), OUTPUTS_4)
    assert compare_numerics(wrong, TRAINED, Numerics.CLOSE, reference=unstable).measured is Numerics.CHANGED


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reference_that_is_not_finite_says_nothing(bad):
    reference = result((bad, *LOSSES_5[1:]))
    numerics = compared(off(LOSSES_5, 1e-3), LOSSES_5, reference=reference)
    assert (numerics.measured, numerics.from_reference) == (Numerics.CLOSE, None)
    assert "float64" not in numerics.text


# --- the arithmetic of the user's own settings ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "rounding"),
    [
        ({"capability": (7, 5), "families": {"conv2d": 1}}, 0.0),
        ({"capability": (8, 0), "families": {"conv2d": 1}}, TF32),
        ({"capability": (9, 0), "families": {"recurrent": 1}}, TF32),
        ({"capability": (9, 0), "families": {"linear": 1}}, 0.0),
        ({"current": {"precision.autocast": "bfloat16"}}, BFLOAT16),
        ({"current": {"precision.float32_matmul": "high"}}, TF32),
        ({"parameter_dtypes": ("bfloat16", "float32")}, BFLOAT16),
        ({"parameter_dtypes": ("float16",)}, FLOAT16),
    ],
)
def test_what_the_users_own_settings_round_to(changes, rounding):
    assert own_rounding(CATALOG, cpu_facts(**{"families": {"linear": 1}} | changes).workload) == rounding


def test_pytorchs_own_values_bring_no_rounding():
    assert {recipe.id: CATALOG.rounding({recipe.key: recipe.default}) for recipe in CATALOG} == dict.fromkeys(
        CATALOG.recipes, 0
    )


# --- what is not finite ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bad", "word"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "inf")])
def test_losses_that_are_not_finite_are_changed(bad, word):
    numerics = compared((2.3, 2.2, bad, bad, bad), LOSSES_5)
    assert (numerics.measured, numerics.difference) == (Numerics.CHANGED, None)
    assert numerics.text in (f"the loss became {word} at step 3 of 5", f"the loss became -{word} at step 3 of 5")
    assert not finite(result((2.3, bad)))
    assert finite(result((2.3,), (bad,)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_outputs_that_are_not_finite_are_changed(bad):
    new, old = result(outputs=(bad, 1.0, bad)), result(outputs=(2.0, 1.0, 1.0))
    assert compare_numerics(new, old, Numerics.EXACT).measured is Numerics.CHANGED
    assert why_unusable(new, old).startswith("the outputs became")
    assert why_unusable(result(outputs=(bad, 1.0, 1.0)), old)  # the sum shows what the sample missed


def test_outputs_that_a_mask_fills_with_infinity_are_compared_by_the_rest():
    old = result(outputs=(-math.inf, 1.0, -math.inf, 2.0))
    assert compare_numerics(old, old, Numerics.EXACT).measured is Numerics.EXACT
    near = result(outputs=(-math.inf, 1.0, -math.inf, 2.0002))
    assert compare_numerics(near, old, Numerics.CLOSE).measured is Numerics.CLOSE
    elsewhere = result(outputs=(-math.inf, -math.inf, -math.inf, 2.0))
    assert compare_numerics(elsewhere, old, Numerics.CLOSE).measured is Numerics.CHANGED


@pytest.mark.parametrize("declared", list(Numerics))
def test_a_baseline_that_is_not_finite_cannot_be_compared_with(declared):
    numerics = compared((2.3, 2.0), (2.3, math.nan), declared)
    assert (numerics.measured, numerics.difference) == (declared, None)
    assert "nothing to compare with" in numerics.text
    assert not numerics.compared


# --- the spread of the baseline's own runs --------------------------------------------------------------------


@pytest.mark.parametrize("declared", [Numerics.EXACT, Numerics.CLOSE])
def test_what_the_baselines_own_runs_do_too_is_not_held_against_a_setting(declared):
    numerics = compared((2.0,), (2.2,), declared, spread=Spread(losses=0.1))
    assert numerics.measured is Numerics.CLOSE
    assert numerics.as_baselines
    assert numerics.decisive is declared
    assert not numerics.worse_than_declared
    assert "no more than two baselines do" in numerics.text


def test_another_draw_may_lie_further_out_than_those_that_were_seen():
    assert "about as much as two baselines" in compared((2.0,), (2.2,), spread=Spread(losses=0.05)).text
    assert compared((2.0,), (2.2,), spread=Spread(losses=0.02)).measured is Numerics.CHANGED


def test_the_spread_is_the_widest_of_all_pairs():
    spread = spread_of([trained(losses) for losses in (0.0, 0.01, -0.02)])
    assert spread.losses == pytest.approx(0.03, rel=0.02)
    assert spread.outputs == 0
    assert spread.random
    assert not Spread().random
    assert spread_of([result((1.0,)), result((math.nan,))]) == Spread()


# --- what cannot be compared ----------------------------------------------------------------------------------


def test_batches_of_another_size_cannot_be_compared():
    numerics = compare_numerics(result((1.0,), batch_size=16), result((1.0,)), Numerics.CHANGED)
    assert (numerics.measured, numerics.difference) == (Numerics.CHANGED, None)
    assert "16 instead of 8" in numerics.text
    assert not numerics.compared


def test_nothing_to_compare():
    assert compared((), ()).difference is None
    for new, old in ((result((1.0,)), result(outputs=(1.0,))), (result(outputs=(1.0, 2.0)), result(outputs=(1.0,)))):
        numerics = compare_numerics(new, old, Numerics.CLOSE)
        assert (numerics.text, numerics.compared) == ("nothing to compare", False)
