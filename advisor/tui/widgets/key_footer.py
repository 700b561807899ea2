"""The footer: the keys that do something now, in one line of text, those that steer the session first.

Textual's footer mounts a dozen widgets again whenever the keys change: that took half the time of a key press.
"""

from __future__ import annotations

from textual.binding import Binding
from textual.content import Content
from textual.reactive import reactive
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget

# Names of keys: those that steer what runs come before the keys of the view, some come after them, the last always.
_FIRST = [f"session.{name}" for name in ("continue", "skip", "stop", "pause", "go_on", "wait", "untried")]
_LATER = ("table.sort", "session.minute")
_LAST = ("app.help", "app.quit")
# Characters that a text field takes, by the names of keys from which Textual does not know them.
_WRITTEN = {"plus": "+"}


class KeyFooter(Widget):
    """The keys, as many as fit; each can be clicked, and all are in the help."""

    ALLOW_SELECT = False
    auto_links = False  # they have colours of their own

    keys: reactive[tuple[Binding, ...]] = reactive(())

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, screen: Screen[object]) -> None:
        """Look the keys up after all changes of a moment: a switch between views reports several."""
        if self.is_attached and screen is self.screen:
            self.call_later(self._look_up)

    def _look_up(self) -> None:
        focused, found = self.screen.focused, dict[str, Binding]()
        for _, binding, enabled, _ in self.screen.active_bindings.values():
            typed = focused is not None and focused.check_consume_key(binding.key, _WRITTEN.get(binding.key))
            if enabled and binding.show and not typed:
                found.setdefault(binding.action, binding)
        self.keys = tuple(sorted(found.values(), key=_place))

    def render(self) -> Content:
        palette = self.screen.active_bindings.get(self.app.COMMAND_PALETTE_BINDING)
        end = Content.styled("▏", "$foreground 20%") + self._text(palette.binding) if palette else Content("")
        last = [self._text(binding) for binding in self.keys if binding.id in _LAST]
        room, shown = self.size.width - sum(map(len, [*last, end])), Content("")
        for text in (self._text(binding) for binding in self.keys if binding.id not in _LAST):
            if len(shown) + len(text) > room:
                break
            shown += text
        line = Content("").join([shown, *last])
        return line + Content(" " * (self.size.width - len(line) - len(end))) + end

    def _text(self, binding: Binding) -> Content:
        shown = f" {self.app.get_key_display(binding)} "
        text = Content.assemble((shown, "bold $footer-key-foreground"), f"{binding.description} ")
        return text.stylize(Style.from_meta({"@click": f"app.simulate_key('{binding.key}')"}))


def _place(binding: Binding) -> int:
    if binding.id in _FIRST:
        return _FIRST.index(binding.id)
    return len(_FIRST) + (binding.id in _LATER) + 2 * (binding.id in _LAST)
