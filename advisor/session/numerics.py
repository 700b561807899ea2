"""Numerics: the first losses or outputs of a trial against the baseline's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from advisor.records import Numerics, NumericsResult, TrialResult

# Half precision rounds to two or three digits and a few training steps amplify that; a wrong kernel is far off.
CLOSE_TOLERANCE = 0.05
_TINY = 1e-12


def compare_numerics(
    result: TrialResult, baseline: TrialResult, declared: Numerics, *, spread: float = 0.0
) -> NumericsResult:
    """The measured class of a trial.

    ``spread`` is the difference between two baselines whose random streams (dropout) differ: what is within it cannot
    be told from the declared class.
    """
    if result.batch_size != baseline.batch_size:
        text = f"batches of {result.batch_size} instead of {baseline.batch_size}: the losses are not comparable"
        return NumericsResult(declared, declared, None, text)
    difference = relative_difference(result, baseline)
    if difference is None:
        return NumericsResult(declared, declared, None, "nothing to compare")
    what = "losses" if result.losses else "outputs"
    if not math.isfinite(difference):
        return NumericsResult(Numerics.CHANGED, declared, None, f"the {what} are not finite")
    measured, text = _classify(difference, declared, spread, what)
    return NumericsResult(measured, declared, difference, text)


def relative_difference(result: TrialResult, baseline: TrialResult) -> float | None:
    """The largest relative difference of the common losses, or the relative L2 distance of the sampled outputs."""
    if result.losses and baseline.losses:
        return _largest(result.losses, baseline.losses)
    if result.outputs and baseline.outputs and len(result.outputs) == len(baseline.outputs):
        return _distance(result.outputs, baseline.outputs)
    return None


def finite(result: TrialResult) -> bool:
    """Whether every loss and output that the probe saw is finite."""
    return all(map(math.isfinite, (*result.losses, *result.outputs)))


def _classify(difference: float, declared: Numerics, spread: float, what: str) -> tuple[Numerics, str]:
    if difference == 0:
        return Numerics.EXACT, f"the {what} are equal to the bit"
    if difference <= spread and declared is not Numerics.CHANGED:
        return declared, f"the {what} differ by {difference:.1e}, no more than two baselines do ({spread:.1e})"
    if difference <= max(CLOSE_TOLERANCE, spread):
        return Numerics.CLOSE, f"the {what} differ by {difference:.1e}"
    return Numerics.CHANGED, f"the {what} differ by {difference:.1e}"


def _largest(new: Sequence[float], old: Sequence[float]) -> float:
    scale = max(_TINY, *(abs(value) for value in old))
    return _worst(abs(a - b) / max(abs(b), 0.1 * scale) for a, b in zip(new, old, strict=False))


def _distance(new: Sequence[float], old: Sequence[float]) -> float:
    # The first element is the sum of all outputs: it tells apart what the sample happens to miss, exact or not.
    if tuple(new) == tuple(old):
        return 0.0
    squared = math.fsum((a - b) ** 2 for a, b in zip(new[1:], old[1:], strict=True))
    norm = math.sqrt(math.fsum(value**2 for value in old[1:]))
    distance = math.sqrt(squared) / max(norm, _TINY)
    return distance if distance else abs(new[0] - old[0]) / max(abs(old[0]), norm, _TINY)


def _worst(values: Iterable[float]) -> float:
    worst = 0.0
    for value in values:
        if not math.isfinite(value):
            return math.inf
        worst = max(worst, value)
    return worst
