"""Numerics: what the first steps of a trial computed against what the baseline's did.

Three things are compared, each relatively: the losses of the first steps, step for step; the model's outputs (of the
first step in training), as the L2 distance of a sample; and the squared norm of the parameters after each update. They
catch different faults. The outputs show a wrong kernel where a mean loss averages it out. The norm shows an update
that is wrong by something systematic, a weight decay that was forgotten, before the losses can. The losses show the
backward pass.

``exact`` is said of losses and outputs that are equal to the bit, and of nothing else. ``close`` is what rounding
explains, ``changed`` what it does not. The tolerance between those two is the largest of

- 16 times the unit round-off of the coarsest arithmetic that the settings bring in or the user's own permit
  (``Recipe.rounding``). Errors of independent roundings add up like a random walk, with the square root of their
  number (Higham and Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41, 2019;
  Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 2.8 and 3.1): 16 is a chain of 256. In
  bfloat16 that is 6 %, in float16 and TensorFloat-32 0.8 %. Micikevicius et al., Mixed Precision Training (ICLR
  2018), found that training survives such errors. No arithmetic excuses more than an eighth.
- A multiple of the baseline's own distance from the same steps in a higher precision: it measures how much rounding
  this very workload amplifies, products in TensorFloat-32 included. 4 times for outputs, whose distance is a mean over
  many; 16 times for losses, any one of which can be near by luck; 8 times for the norm.
- A floor, for other orders of summation and other algorithms in float32 (a Winograd convolution is ten times less
  accurate than a direct one). Losses get eight times as much with each update: an unstable beginning of training
  amplifies rounding so much from one update to the next.

Measured with nets of 2 to 12 layers (linear, convolutional, attention, recurrent; SGD and Adam) in float32, on the
CPU: outputs 6e-8 to 1e-6 from float64, with emulated TensorFloat-32 1e-4 to 1.3e-3, under bfloat16 autocast 2e-3 to
1.6e-2. Losses 1e-8 to 2e-4 with another layout or optimizer implementation, under bfloat16 1e-6 to 6e-3. The norm 1e-13
to 4e-7, under bfloat16 1e-9 to 2e-5. Planted faults: an epsilon of 0.01 in the normalisation 5e-3 to 6e-2 of the
outputs, a bias that is dropped 7e-2 to 1, GELU by its tanh formula 8e-5 to 8e-4; AdamW without its weight decay 3e-5 to
1e-4 of the norm and as little as 5e-7 of the losses, SGD without it 1e-4 to 1e-2 of the norm.

Without such a run in a higher precision 2**-8 is the tolerance for losses and outputs, half the error of one chain in
TensorFloat-32. Where the steps draw random numbers (dropout), a setting may draw others, and no precision tells them
apart: then the baseline's own runs with other random streams show how much that is, and a fault that is smaller stays
hidden behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from advisor.catalog import Catalog
from advisor.records import Numerics, NumericsResult, TrialResult, WorkloadFacts

DEFAULT_TOLERANCE = 2.0**-8
_LARGEST_TOLERANCE = 2.0**-3
# A draw of random numbers can lie further out than the few that were seen.
_STREAM_MARGIN = 3.0
# One loss can be near the reference by luck; of three not all are.
_DRAWS = 3
# A sum depends on its order, which the number of threads decides.
_SUMMATION = 2.0**-20
# Parameters whose norms differ by more than this before the first step are not the same parameters.
_SAME_START = 2.0**-10
_TINY = 1e-12
_HALF_ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
_TF32_ROUNDING = 2.0**-11
_TF32_FAMILIES = ("conv1d", "conv2d", "conv3d", "recurrent")


@dataclass(frozen=True, slots=True)
class Quantity:
    """One of the things compared, and what rounding explains of it.

    ``per_rounding`` is in unit round-offs, ``per_reference`` in distances of the baseline from the reference,
    ``growth`` is the floor's with each update, ``without_reference`` the least tolerance when there is none.
    """

    name: str
    per_rounding: float
    per_reference: float
    floor: float
    growth: float
    without_reference: float


LOSSES = Quantity("losses", 16.0, 16.0, 2.0**-20, 8.0, DEFAULT_TOLERANCE)
OUTPUTS = Quantity("outputs", 16.0, 4.0, 2.0**-16, 1.0, DEFAULT_TOLERANCE)
# An error of the gradients reaches the norm through the update, which is a small part of the weights.
WEIGHTS = Quantity("weights", 0.25, 8.0, 2.0**-19, 1.0, 2.0**-17)
# Where two are equally far off, the first is named.
_QUANTITIES = (LOSSES, OUTPUTS, WEIGHTS)


@dataclass(frozen=True, slots=True)
class Spread:
    """How far runs of the baseline are apart whose random streams differ, or that race (atomic additions)."""

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

    def widened(self, other: Spread) -> Spread:
        """The larger of the two, for each quantity."""
        pairs = ((self.of(quantity), other.of(quantity)) for quantity in (LOSSES, OUTPUTS, WEIGHTS))
        return Spread(*(max(pair) for pair in pairs))


@dataclass(frozen=True, slots=True)
class _Deviation:
    """How far one quantity of a trial is from the baseline's, beside what rounding explains of it.

    ``steps`` are its differences step for step (one for the outputs), ``tolerances`` what is allowed for each.
    """

    quantity: Quantity
    name: str
    steps: tuple[float, ...]
    tolerances: tuple[float, ...]
    spread: float
    from_reference: float | None
    baseline_from_reference: float | None

    @property
    def difference(self) -> float:
        return max(self.steps)

    @property
    def worst_step(self) -> int:
        """The step that is furthest beyond what is allowed for it."""
        return max(range(len(self.steps)), key=lambda step: self.steps[step] / self.tolerances[step])

    @property
    def excess(self) -> float:
        """The difference in tolerances: above 1 it is more than rounding explains."""
        return self.steps[self.worst_step] / self.tolerances[self.worst_step]

    @property
    def as_baselines(self) -> bool:
        return 0 < self.difference <= _STREAM_MARGIN * self.spread

    @property
    def changed(self) -> bool:
        return self.excess > 1 and not self.as_baselines

    @property
    def rank(self) -> tuple[int, float]:
        """The worse, the higher: bit-equal, within the spread, close, changed."""
        order = 0 if not self.difference else 1 if self.as_baselines else 2
        return (3 if self.changed else order), self.excess


def compare_numerics(
    result: TrialResult,
    baseline: TrialResult,
    declared: Numerics,
    *,
    rounding: float = 0.0,
    spread: Spread | None = None,
    reference: TrialResult | None = None,
) -> NumericsResult:
    """The measured class of a trial.

    ``rounding`` is the unit round-off of the coarsest arithmetic in it, ``spread`` how far runs of the baseline are
    apart, ``reference`` the baseline's steps in a higher precision.
    """
    problem = why_unusable(result, baseline)
    if problem:
        return NumericsResult(Numerics.CHANGED, declared, None, problem)
    if not finite(baseline):
        what = "losses" if baseline.losses else "outputs"
        text = f"the baseline's own {what} are not finite: there is nothing to compare with"
        return NumericsResult(declared, declared, None, text)
    if result.batch_size != baseline.batch_size:
        text = f"batches of {result.batch_size} instead of {baseline.batch_size}: the losses are not comparable"
        return NumericsResult(declared, declared, None, text)
    deviations = _deviations(result, baseline, rounding, spread or Spread(), reference)
    if not deviations:
        return NumericsResult(declared, declared, None, "nothing to compare")
    return _classified(max(deviations, key=lambda deviation: deviation.rank), declared, reference)


def spread_between(run: TrialResult, other: TrialResult) -> Spread:
    """How far two runs of the baseline are apart; nothing where they are not finite or not comparable."""
    spans = {quantity.name: max(_differences(quantity, run, other), default=0.0) for quantity in _QUANTITIES}
    return Spread(**{name: span for name, span in spans.items() if math.isfinite(span)})


def own_rounding(catalog: Catalog, workload: WorkloadFacts) -> float:
    """The unit round-off of the coarsest arithmetic that the user's own settings use or permit.

    PyTorch permits TensorFloat-32 in convolutions and recurrent layers by default, and which of their algorithms use
    it depends on shapes and layouts.
    """
    units = [catalog.rounding(workload.current)]
    units += [_HALF_ROUNDING.get(dtype, 0.0) for dtype in workload.parameter_dtypes]
    if (workload.capability or (0, 0)) >= (8, 0) and workload.has(*_TF32_FAMILIES):
        units.append(_TF32_ROUNDING)
    return max(units)


def finite(result: TrialResult) -> bool:
    """Whether every loss, or in inference every output, that the probe saw is finite."""
    return all(map(math.isfinite, result.losses or result.outputs))


def why_unusable(result: TrialResult, baseline: TrialResult) -> str:
    """Why a trial's numerics are worth nothing where the baseline's are sound; empty when they are not that bad."""
    step = _first_not_finite(result.losses)
    if step is not None and _all_finite(baseline.losses):
        return f"the loss became {_kind(result.losses[step])} at step {step + 1} of {len(result.losses)}"
    update = _first_not_finite(result.weights)
    if update is not None and _all_finite(baseline.weights):
        return f"the weights became {_kind(result.weights[update])} with update {update} of {len(result.weights) - 1}"
    spoiled = _spoiled_output(result.outputs, baseline.outputs)
    if spoiled is not None:
        return f"the outputs became {_kind(spoiled)}" + (" in the first step" if result.losses else "")
    if result.skipped_steps and _stuck(result.weights) and not _stuck(baseline.weights):
        return "the gradient scaler skipped every update: at no scale were the gradients finite"
    return ""


# --- differences ----------------------------------------------------------------------------------------------


def _deviations(
    result: TrialResult, baseline: TrialResult, rounding: float, spread: Spread, reference: TrialResult | None
) -> list[_Deviation]:
    """What can be compared. The norm of the weights counts only where it tells of a change."""
    found: list[_Deviation] = []
    for quantity in _QUANTITIES:
        steps = _differences(quantity, result, baseline)
        if not steps:
            continue
        own = _errors(quantity, baseline, reference)
        deviation = _Deviation(
            quantity,
            _name(quantity, result),
            steps,
            _tolerances(quantity, len(steps), rounding, own),
            spread.of(quantity),
            max(_errors(quantity, result, reference), default=None),
            max(own, default=None),
        )
        if quantity is not WEIGHTS or (found and deviation.changed):
            found.append(deviation)
    return found


def _tolerances(quantity: Quantity, steps: int, rounding: float, own: Sequence[float]) -> tuple[float, ...]:
    """What rounding explains of each step; ``own`` are the baseline's distances from the reference, step for step.

    A reference that has fewer steps lends its largest to the later ones, which the floor's growth carries on.
    """
    least = quantity.per_rounding * rounding
    if not own:
        least = max(least, quantity.without_reference)
    tolerances = []
    for step in range(steps):
        seen = max(own[: max(step + 1, _DRAWS)], default=0.0)
        beyond = max(0, step + 1 - len(own)) if own else 0
        amplified = quantity.per_reference * seen * quantity.growth**beyond
        tolerances.append(min(_LARGEST_TOLERANCE, max(least, amplified, quantity.floor * quantity.growth**step)))
    return tuple(tolerances)


def _errors(quantity: Quantity, run: TrialResult, reference: TrialResult | None) -> tuple[float, ...]:
    """A run's distances from the reference, step for step; none where the reference is not finite."""
    errors = _differences(quantity, run, reference) if reference is not None else ()
    return errors if all(map(math.isfinite, errors)) else ()


def _differences(quantity: Quantity, new: TrialResult, old: TrialResult) -> tuple[float, ...]:
    """The relative differences of what two trials have in common; none when they have nothing."""
    if quantity is LOSSES:
        return _each(new.losses, old.losses)
    if quantity is WEIGHTS:
        return _norms(new.weights, old.weights)
    if not new.outputs or len(new.outputs) != len(old.outputs):
        return ()
    return (_distance(new.outputs, old.outputs),)


def _each(new: Sequence[float], old: Sequence[float]) -> tuple[float, ...]:
    """The relative difference of each common step; what nearly vanished is seen against the largest."""
    scale = max((_TINY, *(abs(value) for value in old if math.isfinite(value))))
    pairs = zip(new, old, strict=False)
    return tuple(_or_infinite(abs(a - b) / max(abs(b), 0.1 * scale)) for a, b in pairs)


def _norms(new: Sequence[float], old: Sequence[float]) -> tuple[float, ...]:
    """The differences of the norms after each update, relative to those before the first.

    None when they start differently: then they are not of the same parameters.
    """
    if len(new) < 2 or len(old) < 2 or not min(new[0], old[0]) > 0 or abs(new[0] / old[0] - 1) > _SAME_START:
        return ()
    pairs = zip(new[1:], old[1:], strict=False)
    return tuple(_or_infinite(abs(a / new[0] - b / old[0])) for a, b in pairs)


def _distance(new: Sequence[float], old: Sequence[float]) -> float:
    """The relative L2 distance of the samples; where they are equal, of the sums of all outputs that precede them."""
    total_new, total_old = new[0], old[0]
    pairs = [(a, b) for a, b in zip(new[1:], old[1:], strict=True) if not _same_non_finite(a, b)]
    norm = math.hypot(*(b for _, b in pairs))
    distance = math.hypot(*(a - b for a, b in pairs)) / max(norm, _TINY)
    if distance or _same_non_finite(total_new, total_old):
        return _or_infinite(distance)
    apart = _or_infinite(abs(total_new - total_old) / max(abs(total_old), norm, _TINY))
    return apart if apart > _SUMMATION else 0.0


def _same_non_finite(a: float, b: float) -> bool:
    """Whether both are the same infinity, or both no number: a mask puts minus infinity into logits on purpose."""
    return (a == b and math.isinf(a)) or (math.isnan(a) and math.isnan(b))


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


# --- what is not finite ---------------------------------------------------------------------------------------


def _all_finite(values: Iterable[float]) -> bool:
    return all(map(math.isfinite, values))


def _first_not_finite(values: Sequence[float]) -> int | None:
    return next((place for place, value in enumerate(values) if not math.isfinite(value)), None)


def _spoiled_output(new: Sequence[float], old: Sequence[float]) -> float | None:
    """The first sampled output, or the sum of all, that is not finite where the baseline's is."""
    pairs = list(zip(new, old, strict=False))
    return next((a for a, b in (*pairs[1:], *pairs[:1]) if not math.isfinite(a) and math.isfinite(b)), None)


def _kind(value: float) -> str:
    return "nan" if math.isnan(value) else "inf"


def _stuck(weights: Sequence[float]) -> bool:
    """Whether no update changed the weights."""
    return len(weights) > 1 and len(set(weights)) == 1


# --- words ----------------------------------------------------------------------------------------------------


def _classified(worst: _Deviation, declared: Numerics, reference: TrialResult | None) -> NumericsResult:
    measured = Numerics.CHANGED if worst.changed else Numerics.CLOSE if worst.difference else Numerics.EXACT
    return NumericsResult(
        measured,
        declared,
        worst.steps[worst.worst_step] if worst.changed else worst.difference,
        _text(worst, reference),
        worst.from_reference,
        worst.baseline_from_reference,
        as_baselines=worst.as_baselines,
    )


def _text(worst: _Deviation, reference: TrialResult | None) -> str:
    what, difference = f"the {worst.name}", worst.difference
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
    return text + _reference_text(worst, reference)


def _name(quantity: Quantity, result: TrialResult) -> str:
    if quantity is WEIGHTS:
        return "norms of the weights"
    return "outputs of the first step" if quantity is OUTPUTS and result.losses else quantity.name


def _reference_text(worst: _Deviation, reference: TrialResult | None) -> str:
    if reference is None or worst.from_reference is None or worst.baseline_from_reference is None:
        return ""
    precision = reference.notes[0] if reference.notes else "higher precision"
    own, new = worst.baseline_from_reference, worst.from_reference
    return f"; from a {precision} run the baseline is {own:.1e} off, this {new:.1e}"
