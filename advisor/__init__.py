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
    """Load the settings in a YAML file, ready to be applied to your own loop.

    ``path`` is an exported settings file, or a config with a ``perf_advisor:`` section. ``cache`` is an exported
    compile cache; it holds code, so load only your own. Raises ``advisor.errors.UsageError`` if ``path`` cannot be
    read or holds anything but settings, and OSError if the cache cannot be read.
    """
    from advisor.step.tuning import Tuning

    if cache is not None:
        import torch

        torch.compiler.load_cache_artifacts(Path(cache).read_bytes())
    return Tuning.from_file(path)


def tune(workload: Any, budget: str | float = 300.0, **options: Any) -> Tuned:
    """Measure a workload and return the result: ``settings``, ``report()``, ``apply(...)``, ``save(path)``.

    ``workload`` is a ``build`` function, anything that such a function may return, or a target as on the command line.
    ``budget`` is a time such as ``"2m"``, or seconds. ``options``: ``objective``, ``allow``, ``mode``, ``device``,
    ``batch_size``, ``only``, ``skip``, ``min_score``, ``max_drop`` and ``steps`` as on the command line, ``evaluate``
    (a function or its name), and ``progress=False`` to print no lines. Raises ``advisor.errors.AdvisorError`` if the
    workload cannot be measured.
    """
    from advisor.headless.tune import tune as tuned

    return tuned(workload, budget, **options)


def __getattr__(name: str) -> Any:
    """Import ``Workload`` when it is first used, because the command line must handle signals before slow imports."""
    if name != "Workload":
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    from advisor.workloads.workload import Workload

    return Workload
