"""The views' shared context: the session's state, and the collaborators that the app was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from advisor.experiment import events
from advisor.experiment.control import Decision, SessionControl
from advisor.experiment.request import Request
from advisor.experiment.scaling.gpus import gpus_to_offer
from advisor.experiment.state import SessionState
from advisor.recipe import Recipe
from advisor.recipe.catalog import Catalog
from advisor.records import Recommendation, Value
from advisor.tui.countdown import Countdown
from advisor.tui.exporting import FileExporter
from advisor.tui.recorded import Recorded


@dataclass
class Context:
    """Shared by reference; only the app changes it, and only in the UI thread.

    ``waiting`` names the trials that the person asked for and that have not begun. ``paused``: no further trial begins.
    ``version`` grows with each event. ``recorded`` is the session that is shown again; None for one that measures.
    """

    request: Request
    exporter: FileExporter
    control: SessionControl | None = None
    catalog: Catalog | None = None
    state: SessionState = field(default_factory=SessionState)
    countdown: Countdown = field(default_factory=Countdown)
    busy_with: str = ""
    waiting: tuple[str, ...] = ()
    paused: bool = False
    recorded: Recorded | None = None
    version: int = 0
    today: Callable[[], datetime] = datetime.now

    @property
    def expected_end(self) -> datetime | None:
        """The time at which the session is expected to end; None where unknown."""
        _, left_s = self.countdown.now(self.state)
        return None if left_s is None else self.today() + timedelta(seconds=left_s)

    @property
    def gpus(self) -> int:
        """The number of GPUs that the session trains on, as it was asked for; 0 for all."""
        chosen = self.state.chosen_gpus
        return self.request.gpus if chosen is None else chosen

    @property
    def gpus_to_offer(self) -> int:
        """The number of GPUs that the person can have a running session train on; 0 where there is no choice."""
        running = self.control is not None and self.recorded is None
        return gpus_to_offer(self.request, self.state) if running else 0

    def take(self, event: events.Event) -> None:
        """Have the state and the countdown follow an event."""
        self.state.apply(event)
        self.version += 1
        match event:
            case events.ProgressMade():
                self.countdown.update(self.state)
            case events.TrialStarted():
                self.countdown.trial_began()
            case events.Held(waiting):
                self.countdown.hold(waiting=waiting)
            case events.SessionFinished() | events.SessionFailed():
                self.paused = False

    @property
    def decisions(self) -> dict[str, Decision]:
        """The person's decisions so far, by recipe id."""
        return self.state.decisions

    def recipe(self, recipe_id: str) -> Recipe | None:
        """A recipe, once the catalogue is loaded and if it has it."""
        return self.catalog.recipes.get(recipe_id) if self.catalog else None

    @property
    def defaults(self) -> dict[str, Value]:
        """The default of every setting, by key; empty until the catalogue is loaded."""
        return {recipe.key: recipe.default for recipe in self.catalog.recipes.values()} if self.catalog else {}

    @property
    def device_uuid(self) -> str | None:
        """The GPU that is measured on, once that is known."""
        return self.state.facts.workload.device_uuid if self.state.facts else None

    @property
    def baseline_memory(self) -> int | None:
        """The baseline's peak reserved memory."""
        return self.state.baseline.result.peak_reserved_bytes if self.state.baseline else None

    def recommendation(self, recipe_id: str) -> Recommendation | None:
        """The recommendation of a recipe, if it is ranked."""
        return next((item for item in self.state.recommendations if item.record.candidate.recipe == recipe_id), None)
