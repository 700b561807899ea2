"""The footer: the keys that do something now, in one line of text. Textual's own also hides help and quit first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.content import Content
from textual.screen import Screen

from advisor.tui.widgets.links import LinksLine, link

# Shown before the keys of the view, since they steer what runs; and those that are shown on any screen.
_FIRST = ("session.continue", "session.skip", "session.stop", "session.pause", "session.go_on", "session.untried")
_LAST = ("app.help", "app.quit")
_LATER = ("table.sort", "session.minute")  # shown behind the keys of the view
# Characters that a text field takes, by the names of keys from which Textual does not know them.
_WRITTEN = {"plus": "+"}


class FooterKey(NamedTuple):
    """A key as it is shown, and what it does; ``key`` is Textual's name of it."""

    id: str
    key: str
    shown: str
    label: str
    action: str
    tooltip: str

    @property
    def text(self) -> Content:
        """The key and its label; a click presses it."""
        told = Content.assemble((f" {self.shown} ", "bold $footer-key-foreground"), f"{self.label} ")
        return link(told, f"app.simulate_key('{self.key}')", self.tooltip)


class KeyFooter(LinksLine):
    """The keys, which can be clicked too. It is updated even while the terminal has no focus."""

    DEFAULT_CSS = """
    KeyFooter {
        dock: bottom; height: 1; text-wrap: nowrap;
        color: $footer-foreground; background: $footer-background;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.keys: tuple[FooterKey, ...] = ()
        self._palette = Content("")
        self._is_due = False

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, screen: Screen[object]) -> None:
        """Look up the keys once, though a switch between views reports several changes."""
        if self.is_attached and screen is self.screen and not self._is_due:
            self._is_due = self.call_later(self._take_keys, screen)

    def _take_keys(self, screen: Screen[object]) -> None:
        self._is_due = False
        every = self._active_keys(screen)
        palette = [key.text for key in every if key.key == self.app.COMMAND_PALETTE_BINDING]
        keys = tuple(key for key in every if key.key != self.app.COMMAND_PALETTE_BINDING)
        if keys != self.keys:
            self.keys, self._palette = keys, Content("").join([Content.styled("▏", "$foreground 20%"), *palette])
            self.refresh()

    def _active_keys(self, screen: Screen[object]) -> list[FooterKey]:
        """The keys to show, one for each action: those that steer the session first."""
        found: dict[str, FooterKey] = {}
        for _, binding, enabled, tooltip in screen.active_bindings.values():
            if screen.focused is not None and screen.focused.check_consume_key(binding.key, _WRITTEN.get(binding.key)):
                continue
            if enabled and (binding.show or binding.key == self.app.COMMAND_PALETTE_BINDING):
                shown = self.app.get_key_display(binding)
                told = tooltip or binding.description
                key = FooterKey(binding.id or "", binding.key, shown, binding.description, binding.action, told)
                found.setdefault(binding.action, key)
        return sorted(found.values(), key=lambda key: (key.id not in _FIRST, key.id in _LATER))

    def render(self) -> Content:
        line = Content("").join(fitting(self.keys, self.size.width - len(self._palette)))
        return line + Content(" " * (self.size.width - line.cell_length - len(self._palette))) + self._palette


def fitting(keys: Sequence[FooterKey], width: int) -> list[Content]:
    """The keys that fit into this width: from the left, and in any case help and quit."""
    last = [key.text for key in keys if key.id in _LAST]
    room, kept = width - sum(map(len, last)), list[Content]()
    for text in (key.text for key in keys if key.id not in _LAST):
        room -= len(text)
        if room < 0:
            break
        kept.append(text)
    return [*kept, *last]
