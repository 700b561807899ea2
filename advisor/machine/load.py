"""The load of the machine at this moment: its processor and its memory."""

from __future__ import annotations

import psutil

from advisor.records import HostSample


def sample_host() -> HostSample:
    """Return one reading; the processor's share is that since the last reading."""
    memory = psutil.virtual_memory()
    return HostSample(psutil.cpu_percent(None), memory.total - memory.available, memory.total)
