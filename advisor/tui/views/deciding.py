"""The base of the views in which recipes are accepted, rejected and tried again."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from advisor.experiment.control import Decision
from advisor.tui.messages import RetryWanted, UndoWanted
from advisor.tui.views.base import COPY, View


class DecidingView(View):
    """A view with a chosen recipe or trial, about which the person decides."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "a",
            "accept",
            "Accept",
            tooltip="Accept the recipe: it may enter the stack, also when it changes what is computed",
            id="advice.accept",
        ),
        Binding(
            "r",
            "reject",
            "Reject",
            tooltip="Reject the recipe: it leaves the stack at once, the rest is measured without it",
            id="advice.reject",
        ),
        Binding("u", "undo", "Undo", tooltip="Take the last decision back, one after another", id="advice.undo"),
        Binding("t", "retry", "Retry", tooltip="Run the selected trial again", id="trial.retry"),
        COPY,
    ]

    def choose_recipe(self, recipe: str) -> None:
        """Go to a recipe."""
        raise NotImplementedError

    def decide(self, decision: Decision) -> None:
        """Have the app decide about the selection."""
        raise NotImplementedError

    @property
    def trial(self) -> str:
        """The name of the chosen trial; empty where there is none."""
        raise NotImplementedError

    def action_accept(self) -> None:
        """Accept the selection."""
        self.decide(Decision.ACCEPTED)

    def action_reject(self) -> None:
        """Reject the selection."""
        self.decide(Decision.REJECTED)

    def action_undo(self) -> None:
        """Ask for the last decision to be taken back."""
        self.post_message(UndoWanted())

    def action_retry(self) -> None:
        """Ask for the chosen trial to run again."""
        self.post_message(RetryWanted(self.trial))
