"""A rank of a script that is written for torchrun: it runs the script up to its loop, as all others do.

Rank 0 measures its steps as those of any script. The others take the same steps with no end: in each the ranks wait
for one another, so rank 0's step takes as long as the slowest rank's.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from advisor.process.channel import Channel
from advisor.ranks.trial import OneRank
from advisor.records import Activity, TrialKind, TrialResult, TrialSpec
from advisor.step.batch import mover
from advisor.step.device_loader import is_loader
from advisor.trial.measurement.draws import Feed
from advisor.trial.measurement.guards import Guards
from advisor.trial.timed_loop import resident_data, schedules_that_go_on
from advisor.trial.verify import applied_step
from advisor.workloads.loop import Loop


class RankOfScript(OneRank):
    """One rank's part of a trial of a script."""

    def __init__(self, spec: TrialSpec, channel: Channel, deadline: float) -> None:
        super().__init__(spec, channel, deadline)
        self._rank = int(os.environ["RANK"])
        self.guards = Guards(watch_gpu=self.spec.target.device != "cpu" and not self._rank)

    def run(self) -> TrialResult:
        """Measure in rank 0; in another one take steps until the process is ended."""
        return self._follow() if self._rank else super().run()

    @schedules_that_go_on()
    def _follow(self) -> TrialResult:
        loop, device = self._load()
        step: Callable[[Any], Any]
        if self.spec.kind is TrialKind.VERIFY:
            step, data = applied_step(loop, device, self.catalog, self.spec)
            feed = Feed(data if is_loader(loop.data) else mover(device)(data))
        else:
            parts = self._applied(loop, device, 0.0)
            # Loaders have the ranks meet where an epoch begins, as Accelerate's do, and sharded parameters where one
            # looks at them: what rank 0 does before its steps, and with which batches, is done here too.
            for batch in self._first_batches(parts):
                parts.step(batch)
            step, feed = parts.step, Feed(resident_data(parts.components), self.spec.seed)
        self.channel.send(Activity("taking the steps of rank 0"))
        while True:
            step(feed.next())

    def _load(self) -> tuple[Loop, torch.device]:
        loop, device = super()._load()
        if dist.is_initialized():
            group = f"{dist.get_world_size()} ranks ({dist.get_backend()})"
            loop.notes.append(f"measured in {group}: batch, samples per second and memory are those of one")
        return loop, device
