"""The question on how many GPUs to train: when it is asked, and what follows from the answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.tui.app import AdvisorApp


class GpusQuestion:
    """Asks the person. ``run_in_thread`` runs a call of the session that may take a moment, outside the UI thread."""

    def __init__(
        self,
        app: AdvisorApp,
        tell: Callable[[str], None],
        run_in_thread: Callable[[Callable[[], None]], object],
    ) -> None:
        self._app = app
        self._tell = tell
        self._run_in_thread = run_in_thread
        self._asked = False

    def ask_once(self) -> None:
        """Ask once the baseline is known, where the session is about one GPU; not over another question."""
        if not self._asked and self._app.context.gpus == 1 and len(self._app.screen_stack) == 1:
            self.ask()
        self._asked = True

    def ask(self) -> None:
        """Ask, where there is a choice."""
        from advisor.tui.screens import GpusScreen

        context = self._app.context
        if self._app.is_running and (gpus := context.gpus_to_offer):
            self._app.push_screen(GpusScreen(gpus, context.gpus), self._use)

    def _use(self, count: int | None) -> None:
        context = self._app.context
        if count is None or count == context.gpus or context.control is None:
            return
        if not context.gpus_to_offer:
            self._tell("The search on one GPU is over. A new session with --gpus measures on several.")
            return
        self._run_in_thread(partial(context.control.use_gpus, count))
        after = "one GPU only" if count == 1 else f"{count} GPUs after the search on one"
        self._tell(f"The session measures on {after}. Key G changes it.")
