"""A regression on what combinations of settings took: what was not recorded is a sum of effects of those that were.

The logarithm is a sum of what each setting does and of what each pair of settings does beside that, compiled, captured,
fed by workers and in half precision among them: a ridge regression in its kernel form (Bishop, Pattern Recognition and
Machine Learning, section 6.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from advisor.recipe.settings import Settings
from landscapes.landscape import is_compiled, is_graphed

# What a setting does, typically, in log units; the variance that no logarithm is below; and how much effects of pairs
# are believed beside single effects. By how well the synthetic landscapes' other combinations are predicted
# (test_landscapes.py).
_EFFECT = 0.15
_SMALLEST_VARIANCE = 1e-5
_PAIR_WEIGHT = 0.3


@dataclass(frozen=True)
class Regression:
    """A ridge regression on recorded logarithms, by the parts that combinations have in common."""

    parts: tuple[frozenset[str], ...]
    weights: np.ndarray
    mean: float

    @classmethod
    def of(cls, observed: Mapping[Settings, float], variance: Mapping[Settings, float]) -> Regression:
        """Fit; ``variance`` is that of each recorded logarithm."""
        parts, logarithms = tuple(_parts(settings) for settings in observed), np.array(list(observed.values()))
        noise = [_SMALLEST_VARIANCE + variance[settings] for settings in observed]
        kernel = np.array([_kernel(parts, row) for row in parts]) + np.diag(noise) / _EFFECT**2
        mean = float(logarithms.mean())
        return cls(parts, np.linalg.solve(kernel, logarithms - mean), mean)

    def at(self, settings: Settings) -> float:
        """The logarithm by all that is recorded: of a recorded combination, less of its noise."""
        return self.mean + float(np.dot(_kernel(self.parts, _parts(settings)), self.weights))


def _kernel(recorded: tuple[frozenset[str], ...], parts: frozenset[str]) -> list[float]:
    """The kernel of a regression on single parts and on pairs of them: by how many each recorded combination shares."""
    shared = [len(parts & other) for other in recorded]
    return [1.0 + count + _PAIR_WEIGHT * count * (count - 1) / 2 for count in shared]


def _parts(settings: Settings) -> frozenset[str]:
    """The settings, and what several of them mean alike: compiled, captured, half precision, workers."""
    alike = {
        "compiled": is_compiled(settings),
        "captured": is_graphed(settings),
        "half": "precision.autocast" in settings or "precision.weights" in settings,
        "workers": bool(settings.get("data.num_workers")),
    }
    return frozenset({f"{key}={value}" for key, value in settings.items()} | {name for name in alike if alike[name]})
