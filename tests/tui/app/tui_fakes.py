"""A session that replays events, and the app over it: all else is real."""

import threading
from collections.abc import Callable, Iterable

from tui_histories import READING

from advisor.experiment.control import Decision
from advisor.experiment.events import Decided, Event, ExportVerified
from advisor.experiment.request import Outputs, Request
from advisor.recipe.catalog import load_catalog
from advisor.records import Exported, StackRecord, TargetSpec, Value, Verification
from advisor.tui.app import AdvisorApp


class FakeControl:
    """Replays events; records what it was asked in ``calls``. With ``hold`` it runs on until it is cancelled."""

    def __init__(self, history: Iterable[Event], *, hold: bool = False) -> None:
        self.emit: Callable[[Event], None] = lambda event: None
        self.calls: list[tuple[object, ...]] = []
        self.rework_begins_with: list[Event] = []
        self.rework_ends_with: list[Event] = []
        self.error: Exception | None = None
        self.holds_rework = False
        self._history = list(history)
        self._hold = hold
        self._cancelled = threading.Event()
        self._stopped = threading.Event()
        self._awaited: threading.Event | None = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Most of what a session can be asked is only recorded."""
        if name not in ("skip", "pause", "go_on", "extend", "try_more", "retry"):
            raise AttributeError(name)
        return lambda *arguments: self.calls.append((name, *arguments))

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

    def finish(self) -> None:
        self.calls.append(("finish",))
        self._cancelled.set()

    def decide(self, recipe_id: str, decision: Decision | None, value: Value | None = None) -> None:
        self.calls.append(("decide", recipe_id, decision) if value is None else ("decide", recipe_id, decision, value))
        self.emit(Decided(recipe_id, decision, value))

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


def make_app(
    history: Iterable[Event],
    *,
    hold: bool = False,
    gauges: bool = False,
    target: str = "torchvision.models:resnet50",
    config_path: str | None = None,
    draw_interval_s: float = 0.005,
    clock: Callable[[], float] = lambda: 0.0,
) -> tuple[AdvisorApp, FakeControl]:
    """An app with a fake session attached, wired in the order of the command line."""
    control = FakeControl(history, hold=hold)
    app = AdvisorApp(
        Request(TargetSpec(target, "/home/me/project"), config_path=config_path),
        Outputs(config_path=config_path),
        session_id="20261122-154141",
        open_session=lambda: control,
        load_catalog=load_catalog,
        gauges=(lambda: READING) if gauges else None,
        draw_interval_s=draw_interval_s,
        clock=clock,
    )
    app.animation_level = "none"
    control.emit = app.post_event
    return app, control
