"""The views, one file each; ``VIEWS`` lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.tui.context import Context
    from advisor.tui.views.base import View


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """A view: its id, its number key, its name and what it shows.

    ``sentence`` stands over it and says how to read it; where there is none, the live gauges do.
    """

    id: str
    key: str
    title: str
    description: str
    sentence: str = ""


VIEWS = (
    ViewInfo(
        "overview",
        "1",
        "Overview",
        "The machine, the workload, the baseline, what limits the step, and what your source shows",
    ),
    ViewInfo(
        "profile",
        "2",
        "Profile",
        "Where a step's time goes, the operators, the efficiency, and what habits cost",
        "One step of the baseline: where its time goes, and what the machine could do",
    ),
    ViewInfo("trials", "3", "Trials", "Every candidate with its verdict, live, and the log of the selected trial"),
    ViewInfo(
        "advice",
        "4",
        "Advice",
        "The ranked recommendations: effect, cost, reason and code; accept or reject",
        "The best first. Accept or reject a setting, and the stack follows",
    ),
    ViewInfo(
        "export",
        "5",
        "Export",
        "Preview and save settings, config, Python code or a report",
        "The accepted settings as a file: choose a format, look at it, save it",
    ),
)


def view_info(view_id: str) -> ViewInfo:
    """The view of that id."""
    return next(view for view in VIEWS if view.id == view_id)


def view_class(view_id: str) -> Callable[[Context], View]:
    """The class of a view in ``VIEWS``: ``OverviewView`` of the file ``overview.py``."""
    found: Callable[[Context], View] = getattr(
        import_module(f"{__name__}.{view_id}"), f"{view_id.title().replace('_', '')}View"
    )
    return found
