"""The footer: Textual's own, with the keys that steer the session first, and help and quit on any screen."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.reactive import reactive
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

# Names of keys: those that steer what runs come before the keys of the view, some come after them, the last always.
_FIRST = [f"session.{name}" for name in ("continue", "skip", "stop", "pause", "go_on", "wait", "untried")]
_LATER = ("table.sort", "session.minute")
_LAST = ("app.help", "app.quit")
# Characters that a text field takes, by the names of keys from which Textual does not know them.
_WRITTEN = {"plus": "+"}


class KeyFooter(Footer):
    """The keys that do something now, as many as fit. They are composed again only when they change."""

    keys: reactive[tuple[Binding, ...]] = reactive((), recompose=True)

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Look the keys up after all changes of a moment, also while the terminal has no focus."""
        if self.is_attached and screen is self.screen:
            self.call_later(self._look_up)

    def _look_up(self) -> None:
        focused, found = self.screen.focused, dict[str, Binding]()
        for _, binding, enabled, _ in self.screen.active_bindings.values():
            typed = focused is not None and focused.check_consume_key(binding.key, _WRITTEN.get(binding.key))
            if enabled and binding.show and not typed:
                found.setdefault(binding.action, binding)
        self.keys = tuple(sorted(found.values(), key=_place))

    def on_resize(self) -> None:
        self.refresh(recompose=True)

    def compose(self) -> ComposeResult:
        palette = self.screen.active_bindings.get(self.app.COMMAND_PALETTE_BINDING)
        always = [self._key(binding) for binding in self.keys if binding.id in _LAST]
        room = self.app.size.width
        if palette:
            always.append(self._key(palette.binding, "-command-palette"))
        room -= sum(map(_width, always))
        for key in (self._key(binding) for binding in self.keys if binding.id not in _LAST):
            room -= _width(key)
            if room < 0:
                break
            yield key
        yield from always

    def _key(self, binding: Binding, classes: str = "") -> FooterKey:
        shown, about = self.app.get_key_display(binding), binding.tooltip or binding.description
        key = FooterKey(binding.key, shown, binding.description, binding.action, tooltip=about, classes=classes)
        return key.data_bind(compact=Footer.compact)


def _width(key: FooterKey) -> int:
    """The cells of a key with its label and the spaces around them."""
    return len(key.key_display) + len(key.description) + 3


def _place(binding: Binding) -> int:
    if binding.id in _FIRST:
        return _FIRST.index(binding.id)
    return len(_FIRST) + (binding.id in _LATER) + 2 * (binding.id in _LAST)
