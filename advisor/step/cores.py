"""The cores that the process may use."""

import os
import pathlib


def cores_in(text: str) -> set[int]:
    """The numbers in a list such as 0-3,8."""
    spans = [part.split("-") for part in text.strip().split(",") if part.strip()]
    return {core for span in spans for core in range(int(span[0]), int(span[-1]) + 1)}


def chosen_cores(kind: str, system: str = "/sys/devices/system") -> set[int]:
    """The usable cores of the first NUMA node that has some, or one hardware thread of each physical core."""
    usable = os.sched_getaffinity(0)
    if kind == "node":
        nodes = sorted(pathlib.Path(system, "node").glob("node[0-9]*/cpulist"))
        found = [usable & cores_in(path.read_text(encoding="utf-8")) for path in nodes]
        return next(filter(None, found), usable)
    siblings = [pathlib.Path(system, f"cpu/cpu{core}/topology/thread_siblings_list") for core in sorted(usable)]
    known = [path for path in siblings if path.is_file()]
    return {min(usable & cores_in(path.read_text(encoding="utf-8"))) for path in known} or usable
