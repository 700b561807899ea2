"""perf-advisor: measures known PyTorch speed-ups on your model and your hardware, and writes the settings that won.

Importing this package never imports torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.version import __version__

if TYPE_CHECKING:
    from advisor.headless.tune import Tuned
    from advisor.step.tuning import Tuning
    from advisor.workloads.workload import Workload

__all__ = ["Workload", "__version__", "load", "tune"]


def load(path: str | Path, cache: str | Path | None = None) -> Tuning:
    """The settings in a YAML file, ready to be applied to a loop of one's own.

    ``path`` is an exported settings file, or a config with a ``perf_advisor:`` section. ``cache`` is an exported
    compile cache: it holds code, so load only your own. Raises ``advisor.errors.UsageError`` when ``path`` cannot be
    read or holds anything but settings, and OSError for a cache that cannot be read.
    """
    from advisor.step.tuning import Tuning

    if cache is not None:
        import torch

        torch.compiler.load_cache_artifacts(Path(cache).read_bytes())
    return Tuning.from_file(path)


def tune(workload: Any, budget: str | float = 300.0, **options: Any) -> Tuned:
    """Measure a workload and return what was found: ``settings``, ``report()``, ``apply(...)``, ``save(path)``.

    ``workload`` is a ``build`` function, all that one may return, or a target as on the command line. ``budget`` is a
    time such as ``"2m"``, or seconds. ``options``: ``objective``, ``allow``, ``mode``, ``device``, ``batch_size``,
    ``only``, ``skip``, ``min_score``, ``max_drop``, ``steps`` as on the command line, ``evaluate`` (a function, or
    its name), and ``progress=False`` for no lines. Raises ``advisor.errors.AdvisorError`` when the workload cannot be
    measured.
    """
    from advisor.headless.tune import tune as tuned

    return tuned(workload, budget, **options)


def __getattr__(name: str) -> Any:
    """Import the class when it is first used: the command line takes signals before its own imports."""
    if name != "Workload":
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    from advisor.workloads.workload import Workload

    return Workload
