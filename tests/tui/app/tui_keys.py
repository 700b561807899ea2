"""The app's keys that a person is told of, each with the view that owns it."""

from typing import NamedTuple, cast

from textual.binding import Binding, BindingsMap
from textual.dom import DOMNode

from advisor.tui.app import AdvisorApp
from advisor.tui.main_screen import MainScreen
from advisor.tui.views import VIEWS, view_class
from advisor.tui.widgets.table import Table


class Key(NamedTuple):
    """A key of a view, or of all views where ``view`` is empty."""

    view: str
    binding: Binding

    @property
    def id(self) -> str:
        return self.binding.id or ""


def _keys_of(owner: type[DOMNode], view: str = "") -> list[Key]:
    """The keys that a class and its bases declare: those with an id, the first of several for the same."""
    declared = [binding for base in reversed(owner.__mro__) for binding in base.__dict__.get("BINDINGS", ())]
    found: dict[str, Key] = {}
    for bindings in BindingsMap(declared).key_to_bindings.values():
        for binding in bindings:
            if binding.id and not binding.id.startswith(("command", "screen.copy")) and binding.tooltip:
                found.setdefault(binding.id, Key(view, binding))
    return list(found.values())


KEYS = [
    *(key for view in VIEWS for key in _keys_of(cast("type[DOMNode]", view_class(view.id)), view.id)),
    *_keys_of(Table),
    *_keys_of(MainScreen),
    *_keys_of(AdvisorApp),
]
