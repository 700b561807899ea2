"""Stand-ins for what the app is given.

What it does
------------
A card for the tests, with a bracket: x[0], [red] and [/].

Why it helps
------------
Because tests need one.

When it does not
----------------
Never.

Numerics
--------
exact: it does nothing.

References
----------
None.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tui_facts import READING
from tui_histories import TITLES

from advisor.errors import AdvisorError
from advisor.experiment.control import Decision
from advisor.experiment.events import Decided, Event, ExportVerified
from advisor.experiment.outputs import Outputs
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.export.format import Found, Offer
from advisor.export.formats import format_of
from advisor.recipe import Components, Recipe, Stage
from advisor.recipe.catalog import Catalog
from advisor.records import Exported, Facts, Phase, Skip, StackRecord, TargetSpec, Value, Verification
from advisor.tui.app import AdvisorApp


class FakeControl:
    """Replays events; records what it was asked. With ``hold`` it runs on until it is cancelled."""

    def __init__(self, history: Iterable[Event], *, hold: bool = False) -> None:
        self.emit: Callable[[Event], None] = lambda event: None
        self.calls: list[tuple[object, ...]] = []
        self.rework_begins_with: list[Event] = []
        self.rework_ends_with: list[Event] = []
        self.error: Exception | None = None
        self._history = list(history)
        self._hold = hold
        self._decisions: dict[str, Decision] = {}
        self._cancelled = threading.Event()
        self._stopped = threading.Event()
        self._awaited: threading.Event | None = None
        self.holds_rework = False

    def run(self) -> None:
        self.calls.append(("run",))
        for event in self._history:
            self.emit(event)
        if self.error:
            raise self.error
        if self._hold:
            self._wait_for(self._cancelled)

    def cancel(self) -> None:
        self.calls.append(("cancel",))
        self._cancelled.set()
        self._stopped.set()

    def skip(self) -> None:
        self.calls.append(("skip",))

    def pause(self) -> None:
        self.calls.append(("pause",))

    def go_on(self) -> None:
        self.calls.append(("go_on",))

    def extend(self, seconds: float) -> None:
        self.calls.append(("extend", seconds))

    def finish(self) -> None:
        self.calls.append(("finish",))
        self._cancelled.set()

    def try_more(self, seconds: float | None = None) -> None:
        self.calls.append(("try_more", seconds))

    def decide(self, recipe_id: str, decision: Decision | None, value: Value | None = None) -> None:
        self.calls.append(("decide", recipe_id, decision) if value is None else ("decide", recipe_id, decision, value))
        if decision is None:
            self._decisions.pop(recipe_id, None)
        else:
            self._decisions[recipe_id] = decision
        self.emit(Decided(recipe_id, decision, value))

    def decisions(self) -> dict[str, Decision]:
        return dict(self._decisions)

    def stop(self) -> None:
        self.calls.append(("stop",))
        self._stopped.set()

    def rework(self) -> None:
        self.calls.append(("rework",))
        for event in self.rework_begins_with:
            self.emit(event)
        if self.holds_rework:
            self._wait_for(self._stopped)
            if not self._cancelled.is_set():
                self._stopped.clear()
        for event in self.rework_ends_with:
            self.emit(event)

    def retry(self, name: str) -> None:
        self.calls.append(("retry", name))

    def verify(self, exported: Exported, stack: StackRecord) -> None:
        self.calls.append(("verify", exported.path))
        self.emit(ExportVerified(Verification(exported.path, 1.9, 26.3, 13.8, 1.97)))

    @property
    def held(self) -> bool:
        """Whether a call of the session does nothing until the test lets it go on."""
        awaited = self._awaited
        return awaited is not None and not awaited.is_set()

    def _wait_for(self, awaited: threading.Event) -> None:
        self._awaited = awaited
        awaited.wait(20)
        self._awaited = None


YAML = """\
# Written by perf-advisor. 2.35x (2.32 to 2.37) on one NVIDIA H200.
compile.mode: max-autotune-no-cudagraphs
model.memory_format: channels_last
optimizer.implementation: fused
precision.autocast: bfloat16
"""
DIFF = """\
--- train.yaml
+++ train.yaml
@@ -3,4 +3,8 @@
 lr: 0.1
 epochs: 90  # [red]
-amp: false
+amp: bfloat16
+perf_advisor:
+  compile.mode: max-autotune-no-cudagraphs
+  model.memory_format: channels_last
 seed: 0
"""
PYTHON = '''\
"""Settings that perf-advisor measured together."""
import torch

torch.set_float32_matmul_precision("high")


def prepare(model, optimizer):
    model = model.to(memory_format=torch.channels_last)
    return torch.compile(model, mode="max-autotune-no-cudagraphs"), optimizer
'''


class FakeExporter:
    """Previews fixed texts and writes them."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.verifies = False
        self.saved: list[tuple[str, Path, dict[str, Decision]]] = []  # with the decisions of the time

    def formats(self) -> Sequence[Offer]:
        return (
            Offer("settings", "Settings YAML", "tuned.yaml", "yaml", "for advisor.load()"),
            Offer("config", "Your config, patched", "train.tuned.yaml", "diff", "shown as a diff"),
            Offer("python", "Python file", "tuned.py", "python", "needs no advisor"),
            Offer("report", "Report", "report.md", "markdown", "everything measured"),
        )

    def preview(self, format_id: str, state: SessionState) -> str:
        if self.error:
            raise self.error
        return {"settings": YAML, "config": DIFF, "python": PYTHON}.get(format_id, "# Report\n")

    def save(self, format_id: str, path: Path, state: SessionState) -> Path:
        if self.error:
            raise self.error
        path.write_text(self.preview(format_id, state))
        self.saved.append((format_id, path, dict(state.decisions)))
        return path

    def next_steps(self, format_id: str, name: str, state: SessionState) -> Sequence[str]:
        real = "markdown" if format_id == "report" else format_id
        request = Request(TargetSpec("torchvision.models:resnet50", "/home/me/project"))
        return format_of(real).usage(name, Found(state, request, Outputs(), catalog()))

    def to_verify(self, format_id: str, path: Path, state: SessionState) -> Exported | None:
        return Exported(str(path)) if format_id in ("settings", "python") and self.verifies else None


CANNOT_WRITE = AdvisorError("train.yaml cannot be written: [/] read-only", "Choose another path.")


class _Fake(Recipe):
    key = "fake.key"
    default = "none"
    stage = Stage.STEP

    def __init__(self, recipe_id: str, title: str) -> None:
        self.id, self.title = recipe_id, title  # type: ignore[misc]
        self.phases = frozenset({Phase.DATA_WAIT} if recipe_id == "num_workers" else ())  # type: ignore[misc]

    def candidates(self, facts: Facts) -> Sequence[Value] | Skip:
        return Skip("only for tests")

    def apply(self, workload: Components, value: Value) -> None:
        """Nothing."""

    def code(self, value: Value) -> str:
        return (
            "with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "    loss = loss_fn(model(inputs), targets)  # [red]\n"
            "loss.backward()\n"
            "optimizer.step()\n"
        )


def catalog() -> Catalog:
    return Catalog({recipe_id: _Fake(recipe_id, title) for recipe_id, title in TITLES.items()})


def make_app(
    history: Iterable[Event],
    *,
    hold: bool = False,
    gauges: bool = False,
    target: str = "torchvision.models:resnet50",
    config_path: str | None = None,
    draw_interval_s: float = 0.01,
    clock: Callable[[], float] = lambda: 0.0,
) -> tuple[AdvisorApp, FakeControl]:
    """An app with a fake session attached, wired in the order of the command line."""
    app = AdvisorApp(
        Request(TargetSpec(target, "/home/me/project"), config_path=config_path),
        FakeExporter(),
        load_catalog=catalog,
        gauges=(lambda: READING) if gauges else None,
        rework_delay_s=0.01,
        draw_interval_s=draw_interval_s,
        clock=clock,
    )
    app.animation_level = "none"
    control = FakeControl(history, hold=hold)
    control.emit = app.post_event
    app.attach(lambda: control, session_id="20261122-154141")
    return app, control
