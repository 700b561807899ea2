"""perf-advisor: measures known PyTorch speed-ups on your model and your hardware, and writes the settings that won.

Importing this package never imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from advisor.runtime.tuning import Tuning
    from advisor.target.workload import Workload

__version__ = "0.1.0"
__all__ = ["Workload", "__version__", "load"]


def load(path: str | Path) -> Tuning:
    """The settings in a YAML file, ready to be applied to a loop of one's own.

    ``path`` is an exported settings file, or a config with a ``perf_advisor:`` section. Raises
    ``advisor.errors.UsageError`` when it cannot be read or holds anything but settings.
    """
    from advisor.runtime.tuning import Tuning

    return Tuning.from_file(path)


def __getattr__(name: str) -> Any:
    """Import :class:`Workload` when it is first used: the command line takes signals before its own imports."""
    if name != "Workload":
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    from advisor.target.workload import Workload

    return Workload
