"""Numerics: the results of a trial's first steps compared with the baseline's.

Three things are compared, each relatively: the losses of the first steps, step for step; the model's outputs (of the
first step in training), as the L2 distance of a sample; and the squared norm of the parameters after each update. They
catch different faults. The outputs show a wrong kernel where a mean loss averages it out. The norm shows an update
that is wrong by something systematic, a weight decay that was forgotten, before the losses can. The losses show the
backward pass.

``exact`` is said of losses and outputs that are equal to the bit, from the baseline's batches, and of nothing else.
``close`` is what rounding explains, ``changed`` what it does not (``tolerance.py`` says how much). A trial whose loader
gave other batches is ``changed`` whatever the rest says (``data.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from advisor.experiment.judging.tolerance import LOSSES, OUTPUTS, WEIGHTS, Quantity, explained_by, tolerances
from advisor.records import Numerics, NumericsResult, TrialResult

# Factor on the spread that was seen: another draw of random numbers can differ more than those few.
_STREAM_MARGIN = 3.0
# A sum depends on its order, which the number of threads decides.
_SUMMATION = 2.0**-20
# Parameters whose norms differ by more than this before the first step are not the same parameters.
_SAME_START = 2.0**-10
_TINY = 1e-12
# Where two are equally far off, the first is named.
_QUANTITIES = (LOSSES, OUTPUTS, WEIGHTS)


@dataclass(frozen=True, slots=True)
class Spread:
    """Differences between runs of the baseline that draw other random numbers, or that race (atomic additions)."""

    losses: float = 0.0
    outputs: float = 0.0
    weights: float = 0.0

    @property
    def random(self) -> bool:
        """Whether the runs differ at all."""
        return max(self.losses, self.outputs) > 0

    def of(self, quantity: Quantity) -> float:
        """The spread of one quantity."""
        return float(getattr(self, quantity.name))

    def times(self, factor: float) -> Spread:
        """A spread this many times as wide."""
        return Spread(*(factor * self.of(quantity) for quantity in _QUANTITIES))

    def widened(self, other: Spread) -> Spread:
        """The larger of the two, for each quantity."""
        return Spread(*(max(self.of(quantity), other.of(quantity)) for quantity in _QUANTITIES))


def spread_between(run: TrialResult, other: TrialResult) -> Spread:
    """The differences between two runs of the baseline; 0 where they are not finite or not comparable."""
    largest = (max(_differences(quantity, run, other), default=0.0) for quantity in _QUANTITIES)
    return Spread(*(one if math.isfinite(one) else 0.0 for one in largest))


def compare_numerics(
    result: TrialResult,
    baseline: TrialResult,
    declared: Numerics,
    *,
    rounding: float = 0.0,
    own_rounding: float = 0.0,
    spread: Spread | None = None,
    reference: TrialResult | None = None,
) -> NumericsResult:
    """The measured class of a trial.

    ``rounding`` is the unit round-off of the coarsest arithmetic that its settings bring in, ``own_rounding`` that of
    the user's own. ``spread`` is how far runs of the baseline are apart, ``reference`` the baseline's steps in a higher
    precision.
    """
    if problem := why_unusable(result, baseline):
        return NumericsResult(Numerics.CHANGED, declared, None, problem)
    why_not = ""
    if not finite(baseline):
        what = "losses" if baseline.losses else "outputs"
        why_not = f"the baseline's own {what} are not finite: there is nothing to compare with"
    elif result.batch_size != baseline.batch_size:
        why_not = f"batches of {result.batch_size} instead of {baseline.batch_size}: the losses are not comparable"
    if why_not:
        return NumericsResult(declared, declared, None, why_not, compared=False)
    arithmetic = _Arithmetic(max(rounding, own_rounding), own_rounding, spread or Spread(), reference)
    losses, outputs, weights = (_compared(each, result, baseline, declared, arithmetic) for each in _QUANTITIES)
    compared = [one for one in (losses, outputs) if one is not None]
    if not compared:
        return NumericsResult(declared, declared, None, "nothing to compare", compared=False)
    if weights is not None and weights[1].measured is Numerics.CHANGED:  # it only tells of changes
        compared.append(weights)
    return max(compared, key=lambda one: one[0])[1]


class _Arithmetic(NamedTuple):
    """The explanations of a difference: round-off of the trial and of the baseline, chance, and the reference."""

    rounding: float
    own_rounding: float
    spread: Spread
    reference: TrialResult | None


def _compared(
    quantity: Quantity, result: TrialResult, baseline: TrialResult, declared: Numerics, by: _Arithmetic
) -> tuple[tuple[int, float], NumericsResult] | None:
    """The comparison of one quantity, after its rank, which is higher the worse it is; None of nothing to compare.

    The ranks are those of bit-equal, within the spread of the baseline's runs, close, and changed.
    """
    steps = _differences(quantity, result, baseline)
    if not steps:
        return None
    own, output_errors = _errors(quantity, baseline, by.reference), _errors(OUTPUTS, baseline, by.reference)
    explained = explained_by(quantity, by.rounding, by.own_rounding, max(output_errors, default=None))
    allowed = tolerances(quantity, len(steps), explained, own)
    counted, spread = len(allowed), by.spread.of(quantity)  # an unstable start of training spoils later steps
    excesses = [difference / tolerance for difference, tolerance in zip(steps, allowed, strict=False)]
    worst = excesses.index(max(excesses))
    difference = max(steps[:counted]) or max(steps)
    as_baselines = 0 < difference <= _STREAM_MARGIN * spread
    changed = excesses[worst] > 1 and not as_baselines

    what = _named(quantity, steps, counted, trained=bool(result.losses))
    errors = (_errors(quantity, result, by.reference), own)
    from_reference, baseline_from_reference = (max(each[:counted], default=None) for each in errors)
    if not difference:
        rank, text = 0, f"{what} are equal to the bit"
    elif as_baselines:
        much = "no more than" if difference <= spread else "about as much as"
        rank, text = 1, f"{what} differ by {difference:.1e}, {much} two baselines do ({spread:.1e})"
    else:
        rank, text = 2, f"{what} differ by {difference:.1e}"
        if changed:
            at = f" at step {worst + 1}" if len(steps) > 1 else ""
            rank, difference = 3, steps[worst]
            text = f"{what} differ by {difference:.1e}{at}, where rounding explains {allowed[worst]:.1e}"
        if by.reference is not None and from_reference is not None and baseline_from_reference is not None:
            precision = by.reference.notes[0] if by.reference.notes else "higher precision"
            distances = f"the baseline is {baseline_from_reference:.1e} off, this {from_reference:.1e}"
            text += f"; from a {precision} run {distances}"
    measured = (Numerics.EXACT, Numerics.CLOSE, Numerics.CLOSE, Numerics.CHANGED)[rank]
    found = NumericsResult(
        measured, declared, difference, text, from_reference, baseline_from_reference, as_baselines=as_baselines
    )
    return (rank, excesses[worst] if changed else 0.0), found


def _named(quantity: Quantity, steps: Sequence[float], counted: int, *, trained: bool) -> str:
    """The compared quantity as a text names it; with the number of losses, where later ones do not count."""
    if quantity is WEIGHTS:
        return "the norms of the weights"
    if quantity is OUTPUTS:
        return "the outputs of the first step" if trained else "the outputs"
    if counted == len(steps) or not max(steps[:counted]):
        return "the losses"
    return f"the losses of the first {counted} steps" if counted > 1 else "the losses of the first step"


# --- differences ----------------------------------------------------------------------------------------------


def _errors(quantity: Quantity, run: TrialResult, reference: TrialResult | None) -> tuple[float, ...]:
    """A run's distances from the reference, step for step; none where the reference is not finite."""
    errors = _differences(quantity, run, reference) if reference is not None else ()
    return errors if all(map(math.isfinite, errors)) else ()


def _differences(quantity: Quantity, new: TrialResult, old: TrialResult) -> tuple[float, ...]:
    """The relative differences of the results that two trials have in common; none when they have nothing."""
    if quantity is LOSSES:
        # A loss near zero is related to the largest one.
        scale = max((_TINY, *(abs(value) for value in old.losses if math.isfinite(value))))
        losses = zip(new.losses, old.losses, strict=False)
        return tuple(_or_infinite(abs(a - b) / max(abs(b), 0.1 * scale)) for a, b in losses)
    if quantity is OUTPUTS:
        comparable = new.outputs and len(new.outputs) == len(old.outputs)
        return (distance(new.outputs, old.outputs),) if comparable else ()
    same = not new.parameters or not old.parameters or new.parameters == old.parameters
    return _norms(new.weights, old.weights) if same else ()


def _norms(new: Sequence[float], old: Sequence[float]) -> tuple[float, ...]:
    """The differences of the norms after each update, relative to those before the first.

    None when they start differently: then they are not of the same parameters.
    """
    if len(new) < 2 or len(old) < 2 or not min(new[0], old[0]) > 0 or abs(new[0] / old[0] - 1) > _SAME_START:
        return ()
    pairs = zip(new[1:], old[1:], strict=False)
    return tuple(_or_infinite(abs(a / new[0] - b / old[0])) for a, b in pairs)


def distance(new: Sequence[float], old: Sequence[float]) -> float:
    """The relative distance of two outputs, each given as the sum of all its values, followed by a sample of them.

    It is the L2 distance of the samples, or that of the sums where the samples are equal. Of whole numbers, such as
    tokens or classes, it is the share of the samples that differ.
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
    """Whether both are the same infinity, or both no number: a mask puts minus infinity into logits on purpose."""
    return (a == b and math.isinf(a)) or (math.isnan(a) and math.isnan(b))


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


# --- what is not finite ---------------------------------------------------------------------------------------


def finite(result: TrialResult) -> bool:
    """Whether every loss, or in inference every output, that the probe saw is finite."""
    return all(map(math.isfinite, result.losses or result.outputs))


def why_unusable(result: TrialResult, baseline: TrialResult) -> str:
    """The reason that a trial's numerics are useless although the baseline's are sound; empty when they are not."""
    losses, weights = result.losses, result.weights
    step = _first_not_finite(losses)
    if step is not None and _first_not_finite(baseline.losses) is None:
        return f"the loss became {_kind(losses[step])} at step {step + 1} of {len(losses)}"
    update = _first_not_finite(weights)
    if update is not None and _first_not_finite(baseline.weights) is None:
        return f"the weights became {_kind(weights[update])} with update {update} of {len(weights) - 1}"
    total, *samples = list(zip(result.outputs, baseline.outputs, strict=False)) or [(0.0, 0.0)]
    for new, old in (*samples, total):
        if not math.isfinite(new) and math.isfinite(old):
            return f"the outputs became {_kind(new)}{' in the first step' if losses else ''}"
    if result.skipped_steps and _never_updated(weights) and not _never_updated(baseline.weights):
        return "the gradient scaler skipped every update: at no scale were the gradients finite"
    return ""


def _first_not_finite(values: Sequence[float]) -> int | None:
    return next((place for place, value in enumerate(values) if not math.isfinite(value)), None)


def _kind(value: float) -> str:
    return "nan" if math.isnan(value) else "inf"


def _never_updated(weights: Sequence[float]) -> bool:
    return len(weights) > 1 and len(set(weights)) == 1
