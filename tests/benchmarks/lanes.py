"""Lanes: work on several GPUs at a time.

A lane has one GPU and its share of the cores, and takes one piece of work after the other from a common queue.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
from processes import end_with_children


@dataclass(frozen=True, slots=True)
class Lane:
    """One of several lanes, by its number."""

    number: int
    of: int

    @property
    def prefix(self) -> list[str]:
        """The words before a command that keep it to this lane's cores; none where there are fewer cores than lanes."""
        cores = sorted(os.sched_getaffinity(0))
        each = len(cores) // self.of
        own = cores[self.number * each : (self.number + 1) * each] if self.of > 1 else []
        return ["taskset", "--cpu-list", ",".join(map(str, own))] if own else []

    @property
    def environment(self) -> dict[str, str]:
        """The lane's GPU: of the visible ones, or by its number; any for a single lane."""
        if self.of == 1:
            return {}
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        return {"CUDA_VISIBLE_DEVICES": visible[self.number] if visible else str(self.number)}

    def say(self, what: str, text: str) -> None:
        """Print one line of progress."""
        print(f"{time.strftime('%H:%M:%S')} lane {self.number} {what}: {text}", file=sys.stderr, flush=True)


def run_lanes(work: Sequence[Callable[[Lane], None]], lanes: int) -> None:
    """Do all that is on a list, each piece with the lane that does it."""
    left, lock = list(work), threading.Lock()

    def empty(lane: Lane) -> None:
        while True:
            with lock:
                if not left:
                    return
                task = left.pop(0)
            task(lane)

    threads = [threading.Thread(target=empty, args=(Lane(number, lanes),), daemon=True) for number in range(lanes)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # an interruption
        for child in psutil.Process().children():
            end_with_children(child.pid)
        raise
