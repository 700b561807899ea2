"""The question on how many GPUs to train."""

from __future__ import annotations

from functools import partial
from typing import Any

from textual.app import App

from advisor.tui.context import Host


class GpusQuestion:
    """Asks on how many GPUs to train: once by itself, and whenever the person wants."""

    def __init__(self, app: App[Any], host: Host) -> None:
        self._app, self._host = app, host
        self._asked = False

    def ask_once(self) -> None:
        """Ask once the baseline is known, where the session is about one GPU; not over another question."""
        if not self._asked and self._host.context.gpus == 1 and len(self._app.screen_stack) == 1:
            self.ask()
        self._asked = True

    def ask(self) -> None:
        """Ask, where there is a choice."""
        from advisor.tui.screens import PickScreen

        context = self._host.context
        if not (self._app.is_running and (gpus := context.gpus_to_offer)):
            return
        counts = [1, *(2**power for power in range(1, gpus.bit_length()) if 2**power < gpus), gpus]
        names = ["One GPU", *(f"{count} GPUs" for count in counts[1:-1]), f"All {gpus} GPUs"]
        now = context.gpus or gpus
        about = "The search on one GPU goes on meanwhile. Several GPUs share each batch, and get half of the time."
        title = f"This machine has {gpus} GPUs: train on how many?"
        screen = PickScreen(title, names, counts.index(now) if now in counts else 0, about)
        self._app.push_screen(screen, lambda place: None if place is None else self._use(counts[place]))

    def _use(self, count: int) -> None:
        context = self._host.context
        if count == context.gpus or context.control is None:
            return
        if not context.gpus_to_offer:
            self._host.tell("The search on one GPU is over. A new session with --gpus measures on several.")
            return
        self._host.run_in_thread(partial(context.control.use_gpus, count))
        after = "one GPU only" if count == 1 else f"{count} GPUs after the search on one"
        self._host.tell(f"Measuring on {after}. G changes it.")
