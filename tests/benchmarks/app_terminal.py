"""Drives the app in a real pseudo-terminal while trials run, and holds it against its bounds.

    python tests/benchmarks/app_terminal.py
    python tests/benchmarks/app_terminal.py --keys 200 --blocks 40

Printed, each beside its bound: the first paint after the start of the command; from a key to its painted answer, the
99th percentile; the share of a core that the app's process takes, its search included; and the step time of another
process on the same machine with the app and with it stopped, in turn. Run it on a machine that does nothing else. The
exit status is 1 when a bound is not kept.

The session's own trials sleep in their steps, so that what is seen is the app and not its trials.
"""

import argparse
import fcntl
import os
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).parents[1]))

from on_a_terminal import OnATerminal

from advisor.experiment.events import BaselineMeasured
from advisor.tui.views import VIEWS

FIRST_PAINT_S, KEY_S, SHARE, SLOWDOWN = 0.6, 0.050, 0.05, 0.005
PATIENCE_S = 60.0
# The keys of the two views between which it switches; what each paints is learned, so that words may change.
KEYS = (b"1", b"2")
LEARNING_ROUNDS, LEARNING_S = 3, 1.0
# So many of a view's words tell that it is on the screen: others may scroll away as the session goes on.
ENOUGH_WORDS = 3
WORD = re.compile(rb"[A-Za-z]{4,}")
ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
STEP_S = 0.02
TARGET = f"""
import time
import advisor
import torch

class Sleeps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, inputs):
        time.sleep({STEP_S})
        return self.linear(inputs)

def build():
    model = Sleeps()
    return advisor.Workload(
        model=model,
        data=torch.randn(8, 4),
        loss=lambda output, batch: output.sum(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
"""
# A process of its own, whose steps keep one core busy: it times a block whenever it is asked to.
STEPS = """
import sys, time, torch
torch.set_num_threads(1)
a = torch.randn(256, 256)
for line in sys.stdin:
    end, count, started = time.perf_counter() + float(line), 0, time.perf_counter()
    while time.perf_counter() < end:
        for _ in range(20):
            a @ a
        count += 20
    print((time.perf_counter() - started) / count, flush=True)
"""


class Terminal(OnATerminal):
    """The app in a pseudo-terminal, 120 columns wide."""

    def __init__(self, command: list[str], folder: str) -> None:
        self.started = time.monotonic()
        cached = {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode", "PYTHONDONTWRITEBYTECODE": ""}  # as an installed package
        super().__init__(command, folder, {"PERF_ADVISOR_STATE": f"{folder}/state", **cached})
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))

    def read_until(self, wanted: Collection[bytes], after: int = 0) -> float:
        """Seconds until enough of these words were painted behind the first ``after`` bytes. Raises TimeoutError."""
        started = time.monotonic()
        while len(words_of(self.shown[after:]).intersection(wanted)) < min(ENOUGH_WORDS, len(wanted)):
            if time.monotonic() - started > PATIENCE_S:
                raise TimeoutError(f"Too few of {sorted(wanted)} were painted: {words_of(self.shown[after:])}.")
            time.sleep(0.001)
        return time.monotonic() - started

    def learn(self) -> dict[bytes, set[bytes]]:
        """The words that each view paints whenever it is opened, and the other never. Raises LookupError for none."""
        painted: dict[bytes, list[set[bytes]]] = {key: [] for key in KEYS}
        for key in reversed(KEYS * LEARNING_ROUNDS):
            before = len(self.shown)
            self.press(key)
            time.sleep(LEARNING_S)
            painted[key].append(words_of(self.shown[before:]))
        others = {key: set.union(*painted[other]) for key, other in zip(KEYS, reversed(KEYS), strict=True)}
        learned = {key: set.intersection(*painted[key]) - others[key] for key in KEYS}
        if not all(learned.values()):
            raise LookupError(f"The keys {KEYS} paint no words of their own: {learned}.")
        return learned

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._master, key)

    def leave(self) -> None:
        """Leave the app, and wait for its end."""
        self.press(b"\x11")
        self.ended()

    def processor_s(self) -> float:
        """Seconds of a processor that the app's process has used."""
        return sum(psutil.Process(self.process.pid).cpu_times()[:2])


def words_of(painted: bytes) -> set[bytes]:
    """The words in what was painted; a word that changes its colour within counts as two."""
    return set(WORD.findall(ESCAPES.sub(b" ", painted)))


@dataclass(frozen=True, slots=True)
class Row:
    """A figure with its bound, both as they are printed."""

    name: str
    shown: str
    bound: str
    kept: bool


def first_paint(command: list[str], folder: str) -> Row:
    """From the start of the command to the tabs on the screen; the second start, when the files are in memory."""
    for _ in range(2):
        with Terminal(command, folder) as terminal:
            terminal.read_until([VIEWS[0].title.encode()])
            painted_s, spent_s = time.monotonic() - terminal.started, terminal.processor_s()
            terminal.leave()
    shown = f"{painted_s:.2f} s, {spent_s:.2f} s of them on a core"
    return Row("first paint", shown, f"{FIRST_PAINT_S} s", painted_s <= FIRST_PAINT_S)


def answers(terminal: Terminal, keys: int) -> Row:
    """From a key to its painted answer, while trials run."""
    taken, views = [], list(terminal.learn().items())
    before = terminal.processor_s()
    for turn in range(keys):
        key, wanted = views[(turn + 1) % len(views)]
        time.sleep(0.05 + 0.013 * (turn % 7))  # not in step with anything that the app does
        painted = len(terminal.shown)
        terminal.press(key)
        taken.append(terminal.read_until(wanted, painted))
    worst_s = statistics.quantiles(taken, n=100, method="inclusive")[98]
    each_ms = 1e3 * (terminal.processor_s() - before) / keys
    shown = f"{1e3 * worst_s:.0f} ms (median {1e3 * statistics.median(taken):.0f} ms, {each_ms:.0f} ms on a core each)"
    return Row("key to painted answer, 99th percentile", shown, f"{1e3 * KEY_S:.0f} ms", worst_s <= KEY_S)


def share_of_a_core(terminal: Terminal, seconds: float) -> Row:
    """The processor time of the app's process, its search included, while nobody presses a key."""
    before, started = terminal.processor_s(), time.monotonic()
    time.sleep(seconds)
    share = (terminal.processor_s() - before) / (time.monotonic() - started)
    return Row("share of a core", f"{100 * share:.1f} %", f"{100 * SHARE:.0f} %", share <= SHARE)


def slowdown(terminal: Terminal, blocks: int, block_s: float = 0.5) -> Row:
    """The step time of another process with the app over that with the app stopped, block by block, A B B A."""
    with subprocess.Popen(
        [sys.executable, "-c", STEPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as steps:
        assert steps.stdin is not None
        assert steps.stdout is not None
        times: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(2 * blocks + 2):
            stopped = turn % 4 in (1, 2)
            terminal.process.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)
            steps.stdin.write(f"{block_s}\n")
            steps.stdin.flush()
            block = float(steps.stdout.readline())
            if turn > 1:  # the first of each warm up
                times[stopped].append(block)
        terminal.process.send_signal(signal.SIGCONT)
        steps.stdin.close()
    ratios = [with_app / without for with_app, without in zip(times[False], times[True], strict=True)]
    ratio = statistics.median(ratios) - 1
    low, _, high = statistics.quantiles(ratios, n=4)
    unsure = (high - low) / len(ratios) ** 0.5  # about the standard error of the median
    shown = f"{100 * ratio:+.2f} ± {100 * unsure:.2f} %, {len(ratios)} pairs"
    kept = ratio <= SLOWDOWN and unsure <= SLOWDOWN  # on a busy machine nothing can be told
    return Row("another process's step time with the app", shown, f"{100 * SLOWDOWN:.1f} %", kept)


def has_baseline(folder: str) -> bool:
    """Whether the session's journal has its baseline."""
    return any(BaselineMeasured.__name__ in path.read_text() for path in Path(folder).glob("state/**/*.jsonl"))


def measure(keys: int, seconds: float, blocks: int) -> list[Row]:
    """All figures, in one session of the app."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder, "sleeps.py").write_text(TARGET, encoding="utf-8")
        command = [sys.executable, "-m", "advisor", "sleeps.py", "--budget", "10m"]
        rows = [first_paint(command, folder)]
        with Terminal(command, folder) as terminal:
            terminal.wait_for(lambda: has_baseline(folder))
            rows += [share_of_a_core(terminal, seconds), answers(terminal, keys), slowdown(terminal, blocks)]
            terminal.leave()
    return rows


def main() -> int:
    """Measure and print; 1 when a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100, help="keys that are pressed")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds over which processor time is counted")
    parser.add_argument("--blocks", type=int, default=20, help="pairs of blocks with the app and without")
    options = parser.parse_args()
    rows = measure(options.keys, options.seconds, options.blocks)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for row in rows:
        print(f"{row.name:<42} {row.shown:<48} bound {row.bound:<8} {'kept' if row.kept else 'NOT KEPT'}")
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
