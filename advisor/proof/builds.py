"""``advisor.ab``: two builds timed in turn, from a notebook or a program."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.experiment.measuring.verification import loop_spec, middle_block, ratio_of_processes, time_in_pairs
from advisor.figures.options import choice_of, device_of, seconds_of
from advisor.headless.tune import program_left_alone, read_option, target_of
from advisor.judging.runs import rates
from advisor.records import Comparison, Mode, TargetSpec, Verdict
from advisor.runner.trials import Runner

_MEASURE_S = 2.0
_MOST_PAIRS = 6


@dataclass(frozen=True, slots=True)
class AB:
    """The ratio of samples per second, B over A, with its 95 % interval; and ms per step of both."""

    speedup: float
    ci_low: float
    ci_high: float
    a_step_ms: float
    b_step_ms: float
    pairs: int

    @property
    def verdict(self) -> Verdict:
        """Faster, slower, same or unclear."""
        return Comparison(self.speedup, self.ci_low, self.ci_high).verdict


def ab(
    build_a: Any,
    build_b: Any,
    budget: str | float = 120.0,
    *,
    mode: str | None = None,
    device: str = "auto",
    progress: bool = True,
) -> AB:
    """Time two workloads in turn, A B B A, each time in a fresh process: ``speedup`` of B with its interval.

    Each is a ``build`` function, all that one may return, or a target as on the command line; both run as they are.
    Raises ``advisor.errors.AdvisorError`` when one of them cannot be run.
    """
    budget_s, here = read_option("budget", seconds_of, budget), str(Path.cwd())
    loop, place = choice_of(Mode)(mode) if mode else None, device_of(device)
    first, second = (
        loop_spec(side, TargetSpec(target_of(build), here, loop, place), limit_s=budget_s, measure_s=_MEASURE_S)
        for side, build in (("A", build_a), ("B", build_b))
    )
    say: Callable[[str], None] = (lambda text: print(text, file=sys.stderr)) if progress else (lambda text: None)
    until = time.monotonic() + budget_s
    with program_left_alone():
        Runner.prepare()
        pairs = time_in_pairs(Runner(), first, second, say, until=until, most=_MOST_PAIRS)
    old, new = zip(*pairs, strict=True)
    interval = ratio_of_processes(*([rates(run.blocks) for run in runs] for runs in (new, old)))
    return AB(*interval, middle_block(old).step_ms, middle_block(new).step_ms, len(pairs))
