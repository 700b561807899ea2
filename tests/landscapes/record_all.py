"""Records several workloads in lanes: one GPU and an equal share of the cores for each lane.

    python tests/landscapes/record_all.py --lanes 4 --within 280 --total 575 --out folder \
        resnet50=tests/gpu/workloads/resnet50.py:build resnet50_infer_1=tests/gpu/workloads/resnet50.py:build,infer,1

A workload is ``NAME=TARGET``, with its mode and batch size behind commas where they are not the target's own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

RECORD = Path(__file__).with_name("record.py")
# A recording that has not ended so many seconds after its time is ended.
_PATIENCE_S = 10.0
_SHORTEST_S = 60.0


def command_of(workload: str, out: Path, within_s: float, cores: str) -> list[str]:
    """The command that records one workload."""
    name, _, rest = workload.partition("=")
    target, _, options = rest.partition(",")
    mode, _, batch_size = options.partition(",")
    command = [sys.executable, str(RECORD), target, "--name", name, "--out", str(out / f"{name}.json.gz")]
    command += ["--within", f"{within_s:.0f}", "--cores", cores]
    command += ["--mode", mode] if mode else []
    return command + (["--batch-size", batch_size] if batch_size else [])


class Lane(threading.Thread):
    """Takes one workload after another from the queue, while there is time for it."""

    def __init__(self, number: int, options: argparse.Namespace, waiting: queue.Queue[str], until: float) -> None:
        super().__init__(name=f"lane-{number}")
        self._number, self._options, self._waiting, self._until = number, options, waiting, until
        allowed = sorted(os.sched_getaffinity(0))
        share = max(1, len(allowed) // options.lanes)
        own = allowed[number * share : (number + 1) * share] or allowed
        self._cores = f"{own[0]}-{own[-1]}"

    def run(self) -> None:
        while True:
            try:
                workload = self._waiting.get_nowait()
            except queue.Empty:
                return
            left_s = self._until - time.monotonic() - _PATIENCE_S
            within_s = min(self._options.within, left_s)
            if left_s < min(_SHORTEST_S, self._options.within):
                print(f"no time for {workload}", flush=True)
                continue
            self._record(workload, within_s)

    def _record(self, workload: str, within_s: float) -> None:
        name = workload.partition("=")[0]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        device = visible.split(",")[self._number] if visible else str(self._number)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": device}
        command = command_of(workload, self._options.out, within_s, self._cores)
        with (self._options.out / f"{name}.log").open("w") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            try:
                code = process.wait(within_s + _PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE_S / 2)
                process.kill()
                code = process.wait()
        last = (self._options.out / f"{name}.log").read_text(errors="replace").splitlines()[-1:]
        print(f"lane {self._number}, GPU {device}, cores {self._cores}, exit {code}: {''.join(last)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", metavar="NAME=TARGET[,MODE[,BATCH]]")
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--within", type=float, default=280.0, help="seconds for each workload")
    parser.add_argument("--total", type=float, default=575.0, help="seconds for all")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the landscapes and the logs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + options.total
    waiting: queue.Queue[str] = queue.Queue()
    for workload in options.workloads:
        waiting.put(workload)
    lanes = [Lane(number, options, waiting, until) for number in range(options.lanes)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()


if __name__ == "__main__":
    main()
