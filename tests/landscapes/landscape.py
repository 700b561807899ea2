"""A landscape: what combinations of settings took on one workload and one machine, and its file.

Settings are compared in their canonical form: without values that change nothing, with the mode of a compiled scope.
"""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from advisor.experiment.past.resuming import has_recipes
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Facts, Hardware, Profile, TrialResult, Value, WorkloadFacts

SCHEMA = 1
DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[2]
_COMPILE_MODE = "compile.mode"
# Settings that leave the compiled code as it is; others bring code of their own into the compiler's cache.
_BESIDE_THE_CODE = ("data.", "step.", "optimizer.", "loop.", "host.", "cpu.", "memory.allocator", "backends.", "debug.")
_IN_THE_CODE = ("data.batch_size", "step.accumulate")


@dataclass(frozen=True, slots=True)
class Run:
    """One trial process. ``result.wall_s`` is its whole wall time, seen from outside.

    ``cold`` when it was the first to compile its code. ``stream_seed`` is the seed of its random streams.
    """

    settings: dict[str, Value]
    result: TrialResult
    cold: bool = False
    stream_seed: int = 0


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of what a session does beside its trials' steps.

    ``import_s``: the first trial's wait for the fork server. ``interpreter_s``: a fresh interpreter's start.
    ``build_s``: building in a trial that is not forked from the built target. ``build_once_s``: building it for all.
    ``inspect_s`` and ``profile_s``: what the baseline's inspection and its instrumented pass take.
    """

    import_s: float
    interpreter_s: float
    build_s: float
    build_once_s: float
    inspect_s: float
    profile_s: float


@dataclass(frozen=True, slots=True)
class Landscape:
    """All that was recorded of a workload whose trials are forked from one build.

    ``reference`` is the trial of the first steps in a higher precision; None where it was not recorded.
    """

    schema: int
    name: str
    target: str
    batch_size: int | None
    mode: str | None
    hardware: Hardware
    workload: WorkloadFacts
    versions: dict[str, str]
    profile: Profile | None
    times: Times
    reference: TrialResult | None = None
    runs: tuple[Run, ...] = ()

    @property
    def baseline(self) -> TrialResult:
        """The first run without settings."""
        return next(run.result for run in self.runs if not run.settings)

    @property
    def facts(self) -> Facts:
        """The facts that a session would have."""
        first = self.baseline
        return Facts(
            self.hardware,
            self.workload,
            self.profile,
            self.versions,
            peak_allocated_bytes=first.peak_allocated_bytes,
            peak_reserved_bytes=first.peak_reserved_bytes,
        )


def canonical(catalog: Catalog, workload: WorkloadFacts, settings: Mapping[str, Value]) -> Settings:
    """Settings without those that change nothing, and with the mode that a compiled scope implies."""
    present = {key: workload.current.get(key, catalog.by_key(key).default) for key in settings}
    kept = {key: value for key, value in settings.items() if value != present[key] and key != "control.noop"}
    if any(key.startswith("compile.") for key in kept):
        kept.setdefault(_COMPILE_MODE, "default")
    return Settings(kept)


def is_compiled(settings: Mapping[str, Value]) -> bool:
    """Whether canonical settings compile anything."""
    return settings.get("compile.mode", "none") != "none"


def compile_key(settings: Mapping[str, Value]) -> Settings | None:
    """What names the compiled code of canonical settings: trials that share it find it in the cache."""
    if not is_compiled(settings):
        return None
    inside = {
        key: value for key, value in settings.items() if key in _IN_THE_CODE or not key.startswith(_BESIDE_THE_CODE)
    }
    return Settings(inside)


def sample_seconds(result: TrialResult) -> float:
    """The median over a run's blocks of seconds per sample."""
    return median(block.seconds / block.samples for block in result.blocks)


def load(path: Path) -> Landscape:
    """Read a landscape, without what was run under settings that have left. Raises ValueError for another schema."""
    data: Any = json.loads(gzip.decompress(path.read_bytes()))
    if data.get("schema") != SCHEMA:
        raise ValueError(f"{path.name} is of schema {data.get('schema')}, not {SCHEMA}: record it again")
    found, catalog = msgspec.convert(data, Landscape), load_catalog()
    return replace(found, runs=tuple(run for run in found.runs if has_recipes(catalog, run.settings)))


def stored() -> list[Path]:
    """The files of all stored landscapes."""
    return sorted(DATA.glob("*.json.gz"))
