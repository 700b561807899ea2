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
    roundings = max(rounding, own_rounding), own_rounding
    deviations = _deviations(result, baseline, roundings, spread or Spread(), reference)
    if not deviations:
        return NumericsResult(declared, declared, None, "nothing to compare", compared=False)
    worst = max(deviations, key=lambda deviation: deviation.rank)
    return NumericsResult(
        Numerics.CHANGED if worst.changed else Numerics.CLOSE if worst.difference else Numerics.EXACT,
        declared,
        worst.steps[worst.worst_step] if worst.changed else worst.difference,
        _text(worst, reference, trained=bool(result.losses)),
        worst.from_reference,
        worst.baseline_from_reference,
        as_baselines=worst.as_baselines,
    )


@dataclass(frozen=True, slots=True)
class _Deviation:
    """The difference between one quantity of a trial and the baseline's, with the part that rounding explains.

    ``steps`` are its differences step for step (one for the outputs), ``tolerances`` what is allowed at each of those
    that tell something.
    """

    quantity: Quantity
    steps: tuple[float, ...]
    tolerances: tuple[float, ...]
    spread: float
    from_reference: float | None
    baseline_from_reference: float | None

    @property
    def difference(self) -> float:
        """The largest of the differences that tell something; where none does, the largest of all."""
        return max(self.steps[: len(self.tolerances)]) or max(self.steps)

    @property
    def worst_step(self) -> int:
        """The step whose difference exceeds its tolerance by most."""
        return max(range(len(self.tolerances)), key=lambda step: self.steps[step] / self.tolerances[step])

    @property
    def excess(self) -> float:
        """The difference as a multiple of the tolerance: above 1 rounding does not explain it."""
        return self.steps[self.worst_step] / self.tolerances[self.worst_step]

    @property
    def as_baselines(self) -> bool:
        """Whether it is no larger than differences between runs of the baseline may be."""
        return 0 < self.difference <= _STREAM_MARGIN * self.spread

    @property
    def changed(self) -> bool:
        """Whether neither rounding nor chance explains it."""
        return self.excess > 1 and not self.as_baselines

    @property
    def rank(self) -> tuple[int, float]:
        """The worse, the higher: bit-equal, within the spread, close, changed."""
        if self.changed:
            return 3, self.excess
        return (0 if not self.difference else 1 if self.as_baselines else 2), 0.0


def _deviations(
    result: TrialResult,
    baseline: TrialResult,
    roundings: tuple[float, float],
    spread: Spread,
    reference: TrialResult | None,
) -> list[_Deviation]:
    """The deviations of all comparable quantities. The norm of the weights counts only where it tells of a change.

    ``roundings`` are the round-offs of the trial's and of the baseline's arithmetic.
    """
    output_error = max(_errors(OUTPUTS, baseline, reference), default=None)
    found: list[_Deviation] = []
    for quantity in _QUANTITIES:
        steps = _differences(quantity, result, baseline)
        if not steps:
            continue
        own = _errors(quantity, baseline, reference)
        allowed = tolerances(quantity, len(steps), explained_by(quantity, *roundings, output_error), own)
        errors = (_errors(quantity, result, reference), own)
        largest = (max(each[: len(allowed)], default=None) for each in errors)
        deviation = _Deviation(quantity, steps, allowed, spread.of(quantity), *largest)
        if quantity is not WEIGHTS or (found and deviation.changed):
            found.append(deviation)
    return found


def _text(worst: _Deviation, reference: TrialResult | None, *, trained: bool) -> str:
    """The sentence on the worst deviation."""
    difference, what, compared = worst.difference, "the losses", len(worst.tolerances)
    if worst.quantity is WEIGHTS:
        what = "the norms of the weights"
    elif worst.quantity is OUTPUTS:
        what = "the outputs of the first step" if trained else "the outputs"
    elif compared < len(worst.steps) and max(worst.steps[:compared]):  # an unstable start spoils the rest
        what = f"the losses of the first {f'{compared} steps' if compared > 1 else 'step'}"
    if not difference:
        return f"{what} are equal to the bit"
    if worst.as_baselines:
        much = "no more than" if difference <= worst.spread else "about as much as"
        return f"{what} differ by {difference:.1e}, {much} two baselines do ({worst.spread:.1e})"
    text = f"{what} differ by {difference:.1e}"
    if worst.changed:
        step = worst.worst_step
        at = f" at step {step + 1}" if len(worst.steps) > 1 else ""
        text = f"{what} differ by {worst.steps[step]:.1e}{at}, where rounding explains {worst.tolerances[step]:.1e}"
    if reference is None or worst.from_reference is None or worst.baseline_from_reference is None:
        return text
    precision = reference.notes[0] if reference.notes else "higher precision"
    own, new = worst.baseline_from_reference, worst.from_reference
    return f"{text}; from a {precision} run the baseline is {own:.1e} off, this {new:.1e}"


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
