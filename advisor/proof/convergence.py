"""Check that a training learns as well with exported settings as without, by loss curves from the same seeds."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from advisor.errors import TargetError
from advisor.experiment.measuring.verification import loop_spec, with_file
from advisor.figures.stats import REPORT, student_quantile
from advisor.recipe.catalog import load_catalog
from advisor.records import TargetSpec
from advisor.runner.trials import Runner

WINDOWS = 10  # the number of equal parts of a curve; their mean losses are shown and judged
# Final losses are the same if they differ by less than this share of the learnt loss, or of the final loss.
_LIKE, _LIKE_OF_LOSS = 0.02, 1e-3
# The 95 % quantile of Student's t by the number of seeds; figures/stats.py has it for more seeds.
_QUANTILES = {2: 12.7, 3: 4.30, 4: 3.18}
_LIMIT_S = 3600.0  # the time limit of a process, in seconds


class Learning(StrEnum):
    """The verdict on a training with settings."""

    SAME = "learns as well"
    BETTER = "learns better"
    WORSE = "learns worse"
    DIVERGED = "diverged"

    @property
    def is_fine(self) -> bool:
        """Whether the settings may be used."""
        return self in (Learning.SAME, Learning.BETTER)


Curve = tuple[float, ...]  # the losses of a training from one seed, one per step


def windows(curve: Curve) -> list[float]:
    """The mean losses of the equal parts (windows) of a curve."""
    parts = min(WINDOWS, len(curve))
    ends = [round(len(curve) * part / parts) for part in range(parts + 1)]
    return [fmean(curve[start:end]) for start, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class Convergence:
    """The curves without the settings and with them, one pair per seed."""

    plain: tuple[Curve, ...]
    tuned: tuple[Curve, ...]
    seconds: float

    @property
    def differences(self) -> list[float]:
        """For each seed: the last window's loss with the settings, minus the loss without."""
        return [windows(new)[-1] - windows(old)[-1] for old, new in zip(self.plain, self.tuned, strict=True)]

    @property
    def difference(self) -> float:
        """The mean of the differences."""
        return fmean(self.differences)

    @property
    def learnt(self) -> float:
        """The decrease of the plain loop's loss from the first to the last window, as the mean over the seeds."""
        return fmean(windows(curve)[0] - windows(curve)[-1] for curve in self.plain)

    @property
    def chance(self) -> float:
        """The largest difference that counts as chance: half of its 95 % interval, and at least a share of the loss."""
        found, count = self.differences, len(self.plain)
        like = max(_LIKE * abs(self.learnt), _LIKE_OF_LOSS * abs(fmean(windows(one)[-1] for one in self.plain)))
        if count == 1:
            return like
        quantile = _QUANTILES.get(count) or student_quantile(count - 1, REPORT)
        return max(quantile * stdev(found) / math.sqrt(count), like)

    @property
    def verdict(self) -> Learning:
        """The verdict, from the ends of the curves."""
        ends = [windows(curve)[-1] for curve in self.tuned]
        if not all(map(math.isfinite, [*ends, self.difference])):
            return Learning.DIVERGED
        if abs(self.difference) <= self.chance:
            return Learning.SAME
        return Learning.WORSE if self.difference > 0 else Learning.BETTER


def converge(target: TargetSpec, path: str, say: Callable[[str], None], steps: int, seeds: int) -> Convergence:
    """Train ``steps`` steps without and with the file's settings, from ``seeds`` seeds each, in new processes.

    Raises TargetError if a process fails.
    """
    started = time.monotonic()
    Runner.prepare()
    runner = Runner()
    plain = loop_spec("without the settings", target, limit_s=_LIMIT_S, steps=steps)
    tuned = with_file(plain, path, load_catalog())
    curves: dict[str, list[Curve]] = {plain.trial_id: [], tuned.trial_id: []}
    for seed in range(seeds):
        for spec in (plain, tuned):
            say(f"seed {seed}, {spec.trial_id}: {steps} steps")
            result = runner.run(replace(spec, seed=seed, stream_seed=seed), lambda message: None)
            if not result.measured:
                hint = result.hint or "Fix the error in the lines below."
                raise TargetError(f"the training {spec.trial_id}: {result.reason}", hint, result.details)
            curves[spec.trial_id].append(result.losses)
    without, with_settings = (tuple(side) for side in curves.values())
    if not all(map(math.isfinite, (loss for curve in without for loss in curve))):
        raise TargetError("the training without the settings diverges.", "Fix this first: its loss is not finite.")
    return Convergence(without, with_settings, time.monotonic() - started)


def band(curves: Sequence[Curve]) -> list[tuple[float, float, float]]:
    """The lowest, mean and highest loss over the seeds, for each window."""
    by_window = zip(*map(windows, curves), strict=True)
    return [(min(values), fmean(values), max(values)) for values in by_window]


def as_text(path: str, found: Convergence, steps: int) -> str:
    """The result as a table with a row for each window, and the verdict."""
    rows = [f"{'steps':>12}{'without: mean':>16}{'(range)':>22}{'with: mean':>16}{'(range)':>22}"]
    plain, tuned = band(found.plain), band(found.tuned)
    for number, (old, new) in enumerate(zip(plain, tuned, strict=True), start=1):
        until = round(steps * number / len(plain))
        told = "".join(f"{mean:16.5g}{f'({low:.5g} to {high:.5g})':>22}" for low, mean, high in (old, new))
        rows.append(f"{f'to {until}':>12}{told}")
    seeds = f"{len(found.plain)} seeds" if len(found.plain) > 1 else "one seed, which cannot show chance"
    ends = f"the last losses differ by {found.difference:+.3g} on average; chance explains up to {found.chance:.3g}"
    return "\n".join([*rows, f"{path}: {found.verdict}; {ends} ({seeds})"])


def as_json(found: Convergence) -> dict[str, Any]:
    """The curves and the verdict for JSON."""
    figures = {name: getattr(found, name) for name in ("difference", "chance", "learnt", "plain", "tuned")}
    return {"verdict": found.verdict.value, **figures, "session_s": found.seconds}
