"""The ranks of a trial as one of them sees the others: figures exchanged, moments waited for."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from advisor.machine.device import backend_of
from advisor.records.kinds import COLLECTIVES


class Peers:
    """This rank among all. Every method is called by all ranks at once."""

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        self.device = device
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        dist.init_process_group(
            COLLECTIVES[device.type],
            timeout=datetime.timedelta(seconds=timeout_s),
            device_id=device if backend_of(device).has_memory else None,
        )

    def gathered(self, values: Sequence[float]) -> list[list[float]]:
        """Each rank's values, which are as many in each."""
        own = torch.tensor(values, dtype=torch.float64, device=self.device)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own)
        return [one.tolist() for one in found]

    def largest(self, value: float) -> float:
        """The largest of the ranks' values: what is decided by it is decided alike by all."""
        return max(values[0] for values in self.gathered([value]))

    def objects(self, value: Any) -> list[Any]:
        """Each rank's object."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found
