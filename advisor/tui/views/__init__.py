"""The views, one file each; ``actions.VIEWS`` lists them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.tui.context import Context
    from advisor.tui.views.base import View


def view_class(view_id: str) -> Callable[[Context], View]:
    """The class of a view in ``actions.VIEWS``: ``OverviewView`` of the file ``overview.py``."""
    found: Callable[[Context], View] = getattr(
        import_module(f"{__name__}.{view_id}"), f"{view_id.title().replace('_', '')}View"
    )
    return found
