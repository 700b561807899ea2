"""The options of a benchmark that concern each workload."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """How a workload is measured.

    ``timed_s`` is timed in each process; ``limit_s`` is the longest that a timing process may take; ``rounds`` is the
    number of turns that all variants take, there and back. Caches and state are kept below ``caches``, with a folder
    for each workload, which is deleted after it. With ``reuse`` a session that the results hold is not run again. With
    ``exports`` every variant is timed once and the plain loop at both ends.
    """

    results: Path
    caches: Path
    variants: tuple[str, ...]
    budget_s: int
    command: str
    timed_s: float = 1.0
    rounds: int = 1
    limit_s: float = 150.0
    reuse: bool = False
    small: bool = False
    exports: bool = False
