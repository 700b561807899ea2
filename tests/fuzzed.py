"""Many random inputs to one check."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

MANY = 20_000


def fuzz(examples: int, strategy: SearchStrategy[Any], check: Callable[[Any], object]) -> None:
    """Run a check on so many inputs; fewer than many are the same in each run, so that a run can be repeated."""
    options = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < MANY,
        suppress_health_check=list(HealthCheck),
    )
    options(given(strategy)(check))()
