"""The views, one file each; ``VIEWS`` lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.tui.context import Context
    from advisor.tui.controller import Controller
    from advisor.tui.views.base import View


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """A view: its id, its number key, its name and what it shows."""

    id: str
    key: str
    title: str
    description: str


VIEWS = (
    ViewInfo("result", "1", "Result", "The result so far, and every setting with its figures; accept or reject it"),
    ViewInfo("profile", "2", "Profile", "Where one step spends its time, and what the machine could do"),
    ViewInfo("trials", "3", "Trials", "Everything that ran, with its log"),
    ViewInfo("export", "4", "Export", "The change of your script or config, settings, Python code or a report"),
)


def view_class(view_id: str) -> Callable[[Context, Controller], View]:
    """The class of a view in ``VIEWS``: ``ResultView`` of the file ``result.py``."""
    found: Callable[[Context, Controller], View] = getattr(
        import_module(f"{__name__}.{view_id}"), f"{view_id.title()}View"
    )
    return found
