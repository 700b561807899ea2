"""Learning-rate schedules in a trial, which makes more steps than they may have been made for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.lr_scheduler import OneCycleLR

from advisor.process.replaced import replaced


@contextmanager
def schedules_that_go_on() -> Iterator[None]:
    """Keep a ``OneCycleLR`` at its last rate where it would refuse a step beyond its end; no other schedule refuses."""
    original: Any = OneCycleLR.get_lr

    def get_lr(schedule: Any) -> Any:
        if schedule.last_epoch <= schedule.total_steps:
            return original(schedule)
        return [group["lr"] for group in schedule.optimizer.param_groups]

    with replaced(OneCycleLR, "get_lr", get_lr):
        yield
