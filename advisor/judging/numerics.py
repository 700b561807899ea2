"""Numerics: the results of a trial's first steps compared with the baseline's.

Two things are compared, each relatively: the losses of the first steps, step for step, and the model's outputs (of the
first step in training), as the L2 distance of a sample. The outputs show a wrong kernel where a mean loss averages it
out; the losses show the backward pass and the update.

Results are ``exact`` if they are equal to the bit, and ``close`` if rounding explains the difference. That is at most
the largest of

- 16 times the unit round-off of the coarsest arithmetic that the settings bring in or that the user's own settings
  permit (``Recipe.rounding``). Errors of independent roundings add up with the square root of their number (Higham and
  Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41, 2019): 16 is a chain of 256.
  In bfloat16 that is 6 %, in float16 and TensorFloat-32 0.8 %. Training survives such errors (Micikevicius et al.,
  Mixed Precision Training, ICLR 2018);
- three times the error that this round-off causes in this workload, as shown by the baseline's steps in a higher
  precision (the reference). Outputs of a new ResNet-50 (16 images, CPU) have an error of 1.8 % in emulated
  TensorFloat-32 (37 round-offs) and 12 % in bfloat16 (31); those of a new MobileNetV3 (64 images, H200) 0.35 % in
  TensorFloat-32 (7) and 6.3 % in bfloat16 (16);
- a multiple of the baseline's own distance from the reference: 8 times for outputs, 128 times for losses, whose error
  jumps once the weights have been updated (a sign of Adam's, an activation that opens or closes);
- a floor for other orders of summation and other algorithms in float32. It grows with each update, for losses by 8: an
  unstable start of training amplifies errors as much.

Once this tolerance reaches a half, later steps are not compared. Without a reference, 128 round-offs are allowed for
outputs and 16 for losses; at least 2**-8 for outputs and the first loss, 2**-3 for later losses. If steps draw random
numbers (dropout), baseline runs with other random streams show the effect of a draw; smaller faults stay hidden.

Measured with nets of 2 to 50 layers (linear, convolutional, attention, recurrent; SGD and Adam) in float32, on the
CPU. Outputs: 6e-8 to 5e-5 from float64, with another layout up to 8e-5; with emulated TensorFloat-32 1e-4 to 2e-3, new
ResNets up to 5e-2; under bfloat16 autocast 2e-3 to 3e-2, ResNet-50 0.1 to 0.3. Losses with another layout 1e-8 to 1e-2.
Planted faults: an epsilon of 0.01 in the normalisation 5e-3 to 6e-2 of the outputs, a bias that is dropped 7e-2 to 1,
GELU by its tanh formula 8e-5 to 8e-4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from advisor.recipe.catalog import Catalog
from advisor.records import Numerics, NumericsResult, TrialResult, WorkloadFacts
from advisor.records.trials import MOST_SKIPPED_STEPS

DEFAULT_TOLERANCE = 2.0**-8
# Rounding may explain at most half of a result; a later step for which it explains that much is not compared.
_SAYS_NOTHING = 0.5
_CHAIN = 16.0
_PER_AMPLIFIED = 3.0
_UNUSED = 0.25  # share of a round-off; outputs with a smaller error were not computed in that arithmetic
_FLOAT32_ROUNDING = 2.0**-24
_TF32_ROUNDING = 2.0**-11
_HALF_ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
_TF32_FAMILIES = ("conv1d", "conv2d", "conv3d", "recurrent")
# Factor on the observed spread: another random draw can differ more than the few that were seen.
_STREAM_MARGIN = 3.0
_SUMMATION = 2.0**-20  # a sum depends on its order, which the number of threads decides
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Quantity:
    """A compared quantity, and the difference that rounding explains: the largest of the three."""

    chain: float  # factor on the round-off if no reference was run
    per_reference: float  # factor on the baseline's distance from the reference
    floor: float


LOSSES = Quantity(chain=_CHAIN, per_reference=128.0, floor=2.0**-18)
OUTPUTS = Quantity(chain=128.0, per_reference=8.0, floor=2.0**-16)
# Rounding's effect on a loss and its floor grow with each update; without a reference, later losses have more room.
_GROWTH, _FLOOR_GROWTH, _LATER_AT_LEAST = 2.0, 8.0, 2.0**-3


@dataclass(frozen=True, slots=True)
class Spread:
    """Differences between baseline runs with other random numbers, or with races (atomic additions)."""

    losses: float = 0.0
    outputs: float = 0.0

    @property
    def random(self) -> bool:
        """Whether the runs differ at all."""
        return max(self.losses, self.outputs) > 0


def spread_of(runs: Sequence[TrialResult]) -> Spread:
    """The largest differences between two of these baseline runs, if finite and comparable."""
    pairs = [(later, earlier) for earlier, later in combinations(runs, 2)]
    found = ([max(differences(one, *pair), default=0.0) for pair in pairs] for one in (LOSSES, OUTPUTS))
    return Spread(*(max(filter(math.isfinite, of_pairs), default=0.0) for of_pairs in found))


def compare_numerics(
    result: TrialResult,
    baseline: TrialResult,
    declared: Numerics,
    *,
    rounding: float = 0.0,
    own_rounding: float = 0.0,
    spread: Spread = Spread(),
    reference: TrialResult | None = None,
) -> NumericsResult:
    """The measured class of a trial.

    ``rounding`` is the unit round-off of the coarsest arithmetic that its settings bring in, ``own_rounding`` the one
    of the user's own settings. ``spread`` is the difference between baseline runs, ``reference`` the baseline's steps
    in a higher precision.
    """
    if problem := why_unusable(result, baseline):
        return NumericsResult(Numerics.CHANGED, declared, None, problem)
    why_not = ""
    if not finite(baseline):
        what = "losses" if baseline.losses else "outputs"
        why_not = f"the baseline's own {what} are not finite: there is nothing to compare with"
    elif result.batch_size != baseline.batch_size:
        why_not = f"batches of {result.batch_size} instead of {baseline.batch_size}: the losses are not comparable"
    output_error = max(_distances(OUTPUTS, baseline, reference), default=None)
    found: list[tuple[float, NumericsResult]] = []
    for quantity, of_baselines in ((LOSSES, spread.losses), (OUTPUTS, spread.outputs)):
        if not why_not and differences(quantity, result, baseline):
            explained = explained_by(quantity, max(rounding, own_rounding), own_rounding, output_error)
            runs = (result, baseline, reference)
            found.append(_compared(quantity, *runs, declared=declared, explained=explained, spread=of_baselines))
    if not found:
        return NumericsResult(declared, declared, None, why_not or "nothing to compare", compared=False)
    return max(found, key=lambda one: (one[1].measured.severity, not one[1].as_baselines, one[0]))[1]


def _compared(
    quantity: Quantity,
    result: TrialResult,
    baseline: TrialResult,
    reference: TrialResult | None,
    *,
    declared: Numerics,
    explained: float,
    spread: float,
) -> tuple[float, NumericsResult]:
    """The comparison of one quantity of both trials: by which factor it exceeds the tolerance, and the result."""
    steps = differences(quantity, result, baseline)
    distances, own = (_distances(quantity, run, reference) for run in (result, baseline))
    allowed = tolerances(quantity, len(steps), explained, own)
    counted = len(allowed)  # an unstable start of training spoils later steps
    excesses = [difference / tolerance for difference, tolerance in zip(steps, allowed, strict=False)]
    worst = excesses.index(max(excesses))
    difference = max(steps[:counted]) or max(steps)
    as_baselines = 0 < difference <= _STREAM_MARGIN * spread
    what = "the losses"
    if quantity is OUTPUTS:
        what = "the outputs of the first step" if result.losses else "the outputs"
    elif counted < len(steps) and max(steps[:counted]):
        what = f"the losses of the first {counted} steps" if counted > 1 else "the losses of the first step"
    measured, text = Numerics.CLOSE, f"{what} differ by {difference:.1e}"
    if not difference:
        measured, text = Numerics.EXACT, f"{what} are equal to the bit"
    elif as_baselines:
        much = "no more than" if difference <= spread else "about as much as"
        text += f", {much} two baselines do ({spread:.1e})"
    elif excesses[worst] > 1:
        measured, difference = Numerics.CHANGED, steps[worst]
        at = f" at step {worst + 1}" if len(steps) > 1 else ""
        text = f"{what} differ by {difference:.1e}{at}, where rounding explains {allowed[worst]:.1e}"
    off, baseline_off = (max(each[:counted], default=None) for each in (distances, own))
    if reference is not None and off is not None and baseline_off is not None and difference and not as_baselines:
        precision = reference.notes[0] if reference.notes else "higher precision"
        text += f"; error against {precision}: baseline {baseline_off:.1e}, this {off:.1e}"
    seen = (measured, declared, difference, text, off, baseline_off, as_baselines)
    found = NumericsResult(*seen, another_draw=min(_SAYS_NOTHING, _STREAM_MARGIN * spread))
    return excesses[worst] if measured is Numerics.CHANGED else 0.0, found


# --- what rounding explains -----------------------------------------------------------------------------------


def tolerances(quantity: Quantity, steps: int, explained: float, own: Sequence[float]) -> tuple[float, ...]:
    """The tolerance of each step, up to the step from which the comparison says nothing.

    ``explained`` is from :func:`explained_by`; ``own`` has the baseline's distance from the reference for each step,
    and is empty without a reference.
    """
    allowed: list[float] = []
    for step in range(steps):
        grown = explained * _GROWTH**step
        at_least = _LATER_AT_LEAST if step else DEFAULT_TOLERANCE
        if own:
            # Nothing is updated before the first step. Later steps differ by chance, so the largest difference counts.
            at_least = quantity.per_reference * (max(own) if step else own[0])
        tolerance = max(grown, quantity.floor * _FLOOR_GROWTH**step, at_least)
        if step and tolerance >= _SAYS_NOTHING:
            break
        allowed.append(min(tolerance, _SAYS_NOTHING))
    return tuple(allowed)


def explained_by(quantity: Quantity, rounding: float, own_rounding: float, output_error: float | None) -> float:
    """The relative error of the outputs that arithmetic with this unit round-off explains.

    ``own_rounding`` is the unit round-off of the user's own arithmetic. ``output_error`` is the error that it causes,
    measured with the float64 reference; if it is None, a guess for each quantity replaces it.
    """
    if output_error is None:
        return quantity.chain * rounding
    used = own_rounding if output_error >= _UNUSED * own_rounding else 0.0
    amplification = output_error / max(used, _FLOAT32_ROUNDING)
    return max(_CHAIN, _PER_AMPLIFIED * amplification) * rounding


def own_rounding(catalog: Catalog, workload: WorkloadFacts) -> float:
    """The unit round-off of the coarsest arithmetic that the user's own settings use or permit; 0 for plain float32.

    By default PyTorch permits TensorFloat-32 in convolutions and recurrent layers. Shapes and layouts decide which of
    their algorithms use it.
    """
    units = [catalog.rounding(workload.current)]
    units += [_HALF_ROUNDING.get(dtype, 0.0) for dtype in workload.parameter_dtypes]
    if workload.multiplies_in("tf32") and workload.has(*_TF32_FAMILIES):
        units.append(_TF32_ROUNDING)
    return max(units)


# --- differences ----------------------------------------------------------------------------------------------


def _distances(quantity: Quantity, run: TrialResult, reference: TrialResult | None) -> tuple[float, ...]:
    """A run's distance from the reference at each step; empty if the reference is not finite."""
    errors = differences(quantity, run, reference) if reference is not None else ()
    return errors if all(map(math.isfinite, errors)) else ()


def differences(quantity: Quantity, new: TrialResult, old: TrialResult) -> tuple[float, ...]:
    """The relative differences of the results that both trials have; empty if they share none."""
    if quantity is LOSSES:
        # A loss near zero is compared relative to the largest loss.
        scale = max((_TINY, *(abs(value) for value in old.losses if math.isfinite(value))))
        losses = zip(new.losses, old.losses, strict=False)
        return tuple(_or_infinite(abs(a - b) / max(abs(b), 0.1 * scale)) for a, b in losses)
    comparable = new.outputs and len(new.outputs) == len(old.outputs)
    return (distance(new.outputs, old.outputs),) if comparable else ()


def distance(new: Sequence[float], old: Sequence[float]) -> float:
    """The relative distance of two outputs, each given as the sum of all its values followed by a sample of them.

    It is the L2 distance of the samples, or of the sums if the samples are equal. For whole numbers (tokens, classes)
    it is the share of samples that differ.
    """
    total_new, total_old = new[0], old[0]
    differing = sum(a != b for a, b in zip(new[1:], old[1:], strict=True))
    if differing and all(value.is_integer() for value in (*new[1:], *old[1:])):
        return differing / (len(old) - 1)
    pairs = [(a, b) for a, b in zip(new[1:], old[1:], strict=True) if not _same_non_finite(a, b)]
    norm = math.hypot(*(b for _, b in pairs))
    apart = math.hypot(*(a - b for a, b in pairs)) / max(norm, _TINY)
    if apart or _same_non_finite(total_new, total_old):
        return _or_infinite(apart)
    apart = _or_infinite(abs(total_new - total_old) / max(abs(total_old), norm, _TINY))
    return apart if apart > _SUMMATION else 0.0


def _same_non_finite(a: float, b: float) -> bool:
    """Whether both are the same infinity or both NaN: a mask puts minus infinity into logits on purpose."""
    return (a == b and math.isinf(a)) or (math.isnan(a) and math.isnan(b))


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


# --- what is not finite ---------------------------------------------------------------------------------------


def finite(result: TrialResult) -> bool:
    """Whether every loss (or in inference, every output) that the probe saw is finite."""
    return all(map(math.isfinite, result.losses or result.outputs))


def why_unusable(result: TrialResult, baseline: TrialResult) -> str:
    """The reason that a trial's numerics are useless while the baseline's are sound; empty if there is none."""
    losses = result.losses
    if all(map(math.isfinite, baseline.losses)):
        for step, loss in enumerate(losses, 1):
            if not math.isfinite(loss):
                return f"the loss became {abs(loss)} at step {step} of {len(losses)}"
    total, *samples = list(zip(result.outputs, baseline.outputs, strict=False)) or [(0.0, 0.0)]
    for new, old in (*samples, total):
        if not math.isfinite(new) and math.isfinite(old):
            return f"the outputs became {abs(new)}{' in the first step' if losses else ''}"
    if result.skipped_steps > MOST_SKIPPED_STEPS >= baseline.skipped_steps:
        return "the gradient scaler skipped every update: the gradients were not finite at any scale"
    return ""
