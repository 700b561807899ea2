"""How far plain runs of one loop are apart on a GPU: a tuned run is not wrong where it is as far from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from loops.cases import Case
from loops.compare import Tolerance, figures
from loops.records import Record, run_plain
from loops.register import Loop
from loops.runs import Arithmetic

# A tuned run may be this many times as far from the plain run as plain runs are from each other. Unitless.
_MARGIN = 2.0
# What rounding may widen a declared tolerance by, as a multiple of it. Unitless.
_MOST_WIDER = 5.0
# No tolerance grows beyond this: a layer that never trains is 1.0 apart. Relative.
_MOST = 0.9
_OTHER_SEED = 1
# The kinds of figures, by the fields of a tolerance.
_KINDS = {"losses": "losses", "outputs": "outputs", "movement": "weights", "states": "states"}


class PlainRuns:
    """The plain runs of one loop on one device, each made when it is first asked for."""

    def __init__(self, loop: Loop, device: torch.device) -> None:
        self.loop = loop
        self.device = device
        self._records: dict[tuple[Arithmetic, str], Record] = {}

    def of(self, arithmetic: Arithmetic, what: str = "") -> Record:
        """Return the run in some arithmetic; ``again``: a second one, ``other draws``: with a GPU's other numbers."""
        if (arithmetic, what) not in self._records:
            seed = _OTHER_SEED if what == "other draws" else 0
            self._records[arithmetic, what] = run_plain(self.loop, self.device, arithmetic, device_seed=seed)
        return self._records[arithmetic, what]

    def widened(self, tolerance: Tolerance, case: Case, seen: Callable[[Record], Record]) -> Tolerance:
        """Return the tolerance with room for what the GPU itself does to a loop. On the CPU nothing does.

        A GPU adds in another order each time, and rounds products of fewer bits: how much a loop makes of that is
        read off two equal runs, and off the run in full precision. In another memory format other kernels run, which
        may round where the usual ones do not: that is read off a plain run in this format. Compiled code draws other
        random numbers. ``seen`` prepares a record for being compared.
        """
        if self.device.type != "cuda":
            return tolerance
        plain = seen(self.of(case.arithmetic))
        others = [self.of(case.arithmetic, "again"), self.of(Arithmetic())]
        layout = case.settings.get("model.memory_format")
        if layout is not None and case.arithmetic.rounds:
            others.append(self.of(replace(case.arithmetic, layout=str(layout))))
        wider = _wider(tolerance, [figures(plain, seen(other)) for other in others], _MOST_WIDER)
        if case.compiles and "random" in self.loop.traits:
            other_draws = figures(plain, seen(self.of(case.arithmetic, "other draws")))
            wider = _wider(wider, [other_draws], float("inf"))
        return wider


def _wider(tolerance: Tolerance, apart: list[dict[str, float]], most_wider: float) -> Tolerance:
    """Return the tolerance, raised to what plain runs show, within limits."""

    def raised() -> Iterator[tuple[str, float]]:
        for field, kind in _KINDS.items():
            declared = getattr(tolerance, field)
            if declared is not None:
                shown = _MARGIN * max(run.get(kind, 0.0) for run in apart)
                yield field, max(declared, min(shown, most_wider * declared, _MOST))

    return replace(tolerance, **dict(raised()))
