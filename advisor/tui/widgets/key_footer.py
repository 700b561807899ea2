"""The footer: the keys that do something now, in one line of text.

Textual's own has a widget for each key and makes all of them anew whenever one changes: with it a switch between views
took 120 ms where this one takes 37, and a row of a table 100 ms where it takes 23 (Textual 8.2). It also hides
what does not fit, help and quit last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

# Shown before the keys of the view, since they steer what runs; and those that are shown however narrow the screen is.
_FIRST = ("session.continue", "session.skip", "session.stop", "session.pause", "session.go_on", "session.untried")
_LAST = ("app.help", "app.quit")
# Characters that a text field takes, by the names of keys from which Textual does not know them.
_WRITTEN = {"plus": "+"}
_PALETTE_EDGE = "▏"


@dataclass(frozen=True, slots=True)
class FooterKey:
    """A key as it is shown, and what it does; ``key`` is Textual's name of it."""

    id: str
    key: str
    shown: str
    label: str
    action: str
    tooltip: str

    @property
    def text(self) -> Content:
        """The key and its label."""
        return Content.assemble((f" {self.shown} ", "bold $footer-key-foreground"), f"{self.label} ")


class KeyFooter(Widget):
    """The keys, which can be clicked too. It is updated even while the terminal has no focus."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    KeyFooter {
        dock: bottom; height: 1; text-wrap: nowrap;
        color: $footer-foreground; background: $footer-background;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.keys: tuple[FooterKey, ...] = ()
        self._palette: FooterKey | None = None
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
        keys = tuple(key for key in every if key.key != self.app.COMMAND_PALETTE_BINDING)
        if keys != self.keys:
            self._palette = next((key for key in every if key not in keys), None)
            self.keys = keys
            self.refresh()

    def _active_keys(self, screen: Screen[object]) -> list[FooterKey]:
        """The keys to show, one for each action, and the palette's: those that steer the session first."""
        found: dict[str, FooterKey] = {}
        for _, binding, enabled, tooltip in screen.active_bindings.values():
            if screen.focused is not None and screen.focused.check_consume_key(binding.key, _WRITTEN.get(binding.key)):
                continue
            if enabled and (binding.show or binding.key == self.app.COMMAND_PALETTE_BINDING):
                shown = self.app.get_key_display(binding)
                told = tooltip or binding.description
                key = FooterKey(binding.id or "", binding.key, shown, binding.description, binding.action, told)
                found.setdefault(binding.action, key)
        return sorted(found.values(), key=lambda key: key.id not in _FIRST)

    def render(self) -> Content:
        line = Content("").join([key.text for key, _, _ in self._places() if key is not self._palette])
        if self._palette is None:
            return line
        end = Content.assemble((_PALETTE_EDGE, "$foreground 20%"), self._palette.text)
        return line + Content(" " * (self.size.width - line.cell_length - end.cell_length)) + end

    def _places(self) -> list[tuple[FooterKey, int, int]]:
        """Each key that is shown, and the cells where it begins and ends."""
        palette = self._palette
        end = self.size.width - (palette.text.cell_length if palette else 0)
        places, begin = [], 0
        for key in fitting(self.keys, end - len(_PALETTE_EDGE)):
            places.append((key, begin, begin + key.text.cell_length))
            begin = places[-1][2]
        return [*places, *([(palette, end, self.size.width)] if palette else [])]

    def _key_at(self, x: int) -> FooterKey | None:
        return next((key for key, begin, end in self._places() if begin <= x < end), None)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        key = self._key_at(event.x)
        self.tooltip = key.tooltip if key else None

    def on_click(self, event: events.Click) -> None:
        if key := self._key_at(event.x):
            self.app.simulate_key(key.key)


def fitting(keys: Sequence[FooterKey], width: int) -> list[FooterKey]:
    """Return the keys that fit into this width: from the left, and in any case help and quit."""
    last = [key for key in keys if key.id in _LAST]
    room = width - sum(key.text.cell_length for key in last)
    kept: list[FooterKey] = []
    for key in keys:
        if key in last:
            continue
        room -= key.text.cell_length
        if room < 0:
            break
        kept.append(key)
    return [*kept, *last]
