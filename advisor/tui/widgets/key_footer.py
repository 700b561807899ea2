"""The footer: built again only when the keys in it changed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer

_Keys = tuple[tuple[str, str, str, bool], ...]


class KeyFooter(Footer):
    """Textual's footer makes all its keys anew each time the bindings may have changed; mostly they have not.

    It is kept up to date also while the terminal has no focus: a session is often watched from another window.
    """

    _shown: _Keys | None = None

    def compose(self) -> ComposeResult:
        """The keys as they are now."""
        if self._bindings_ready:
            self._shown = self._keys()
        yield from super().compose()

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Build the footer again if it would show anything else."""
        self._bindings_ready = True
        if self.is_attached and screen is self.screen and self._keys() != self._shown:
            self.call_after_refresh(self.recompose)

    def _keys(self) -> _Keys:
        """Of each key in the order of the footer: the key, what it does, what it is called, whether it is dimmed."""
        return tuple(
            (binding.key, binding.action, binding.description, enabled)
            for _, binding, enabled, _ in self.screen.active_bindings.values()
            if binding.show
        )
