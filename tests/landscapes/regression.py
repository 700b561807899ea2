"""A regression on what combinations of settings took: what was not recorded is a sum of effects of those that were.

The logarithm is a sum of what each setting does and of what each pair of settings does beside that, compiled, captured,
fed by workers and in half precision among them: a ridge regression in its kernel form (Bishop, Pattern Recognition and
Machine Learning, section 6.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from advisor.recipe.settings import Settings
from landscapes.landscape import is_compiled, is_graphed

# What a setting does, typically, in log units; the variance that no logarithm is below; and how much effects of pairs
# and the level of all are believed beside single effects. By how well the synthetic landscapes' other combinations are
# predicted (test_landscapes.py).
_EFFECT = 0.15
_SMALLEST_VARIANCE = 1e-5
_PAIR_WEIGHT = 0.3
_MEAN_WEIGHT = 1.0


@dataclass(frozen=True)
class Regression:
    """A ridge regression on recorded logarithms, by what combinations have in common (its kernel form).

    ``parts`` numbers the columns of ``present``, which has a row for each recorded combination.
    """

    observed: dict[Settings, float]
    parts: dict[str, int]
    present: np.ndarray
    weights: np.ndarray
    mean: float

    @classmethod
    def of(cls, observed: Mapping[Settings, float], variance: Mapping[Settings, float] | None = None) -> Regression:
        """Fit; an empty mapping gives a regression that says 0. ``variance`` is that of each recorded logarithm."""
        names = sorted({part for settings in observed for part in _parts(settings)})
        parts = {name: column for column, name in enumerate(names)}
        present = np.array([_row(settings, parts) for settings in observed]).reshape(len(observed), len(parts))
        mean = sum(observed.values()) / len(observed) if observed else 0.0
        wanted = np.array(list(observed.values())) - mean
        noise = [_SMALLEST_VARIANCE + (variance or {}).get(settings, 0.0) for settings in observed]
        penalty = np.diag(noise) / _EFFECT**2
        return cls(
            dict(observed), parts, present, np.linalg.solve(_kernel(present @ present.T) + penalty, wanted), mean
        )

    def at(self, settings: Settings) -> float:
        """The recorded logarithm, else the predicted one."""
        return self.observed[settings] if settings in self.observed else self.fitted(settings)

    def fitted(self, settings: Settings) -> float:
        """The logarithm by all that is recorded: of a recorded combination, less of its noise."""
        return self.mean + float(_kernel(self.present @ _row(settings, self.parts)) @ self.weights)

    def bytes_of(self, settings: Settings) -> int | None:
        """The prediction as bytes; None where nothing was recorded."""
        return int(math.exp(self.at(settings))) if self.observed else None


def _row(settings: Settings, parts: Mapping[str, int]) -> np.ndarray:
    """1.0 for each part that the settings have."""
    row = np.zeros(len(parts))
    row[[parts[part] for part in _parts(settings) if part in parts]] = 1.0
    return row


def _kernel(shared: np.ndarray) -> np.ndarray:
    """The kernel of a regression on single parts and on pairs of parts, from how many parts are shared."""
    return _MEAN_WEIGHT + shared + _PAIR_WEIGHT * shared * (shared - 1) / 2


def _parts(settings: Settings) -> frozenset[str]:
    """The settings, and what several of them mean alike: compiled, captured, half precision, workers."""
    found = {f"{key}={value}" for key, value in settings.items()}
    if is_compiled(settings):
        found.add("compiled")
    if is_graphed(settings):
        found.add("captured")
    if "precision.autocast" in settings or "precision.weights" in settings:
        found.add("half")
    if settings.get("data.num_workers"):
        found.add("workers")
    return frozenset(found)
