"""The compiler's remarks: graph breaks, and compilations while steps were being timed."""

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from advisor.figures.formatting import counted, format_first

_REASONS_SHOWN = 3
_LONGEST_REASON = 120
_LIMIT = "recompile limit exceeded"


def keep_no_kernel_timings() -> None:
    """Have the compiler cache its code for other processes, but not its choice of the fastest kernels.

    It times some kernels at their first run. Times taken beside another process do not hold for one that runs alone.
    """
    with contextlib.suppress(ImportError, AttributeError):  # a version without that cache has none to fill
        from torch._inductor import config

        config.autotune_local_cache = False


@dataclass(frozen=True, slots=True)
class CompileMark:
    """A moment in the compiler's life: how many frames it had compiled, and which of those compilations are listed."""

    frames: int = 0
    listed: tuple[Any, ...] = ()


def compile_mark() -> CompileMark:
    """Now. Costs nothing where nothing has been compiled."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return CompileMark()
    return CompileMark(dynamo.counters["frames"]["total"], tuple(dynamo.get_compilation_metrics()))


def compilation_notes(warm: CompileMark) -> tuple[str, ...]:
    """Plain notes on what was compiled in this process. ``warm`` was taken when the warm-up ended."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None or not dynamo.counters["frames"]["total"]:
        return ()
    notes = []
    problems = {**dynamo.counters["graph_break"], **dynamo.counters["unimplemented"]}
    breaks = [_headline(problem) for problem in problems if _LIMIT not in problem]
    if count := max(len(breaks), len(dynamo.counters["resumes"])):
        notes.append(f"{counted(count, 'graph break')}{_listed(breaks)}")
    if again := dynamo.counters["frames"]["total"] - warm.frames:
        times = "once" if again == 1 else f"{again} times"
        notes.append(f"recompiled {times} after the warm-up{_listed(_recompile_reasons(dynamo, warm))}")
    if len(breaks) < len(problems):
        reasons = _listed(_recompile_reasons(dynamo, CompileMark()))
        notes.append(
            f"the compiler gave up on a function that it had compiled too often{reasons}; that runs eagerly: values "
            "that change from step to step belong into tensors"
        )
    return tuple(notes)


def _listed(reasons: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(filter(None, reasons)))
    return f": {format_first(distinct, _REASONS_SHOWN, '; ')}" if distinct else ""


def _recompile_reasons(dynamo: Any, warm: CompileMark) -> list[str]:
    """Reasons of the recompilations since then: ``0/1: tensor 'x' size mismatch...  # source (HINT: ...)``."""
    listed = set(map(id, warm.listed))
    found = [metrics for metrics in dynamo.get_compilation_metrics() if id(metrics) not in listed]
    reasons = [_headline(getattr(metrics, "recompile_reason", None) or "") for metrics in found]
    return [reason.partition(": ")[2].partition("  ")[0].strip() for reason in reasons]


def _headline(text: str) -> str:
    line = text.strip().partition("\n")[0].strip()
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"
