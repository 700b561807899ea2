"""The views, one file each; ``VIEWS`` lists them."""

from advisor.tui.views.base import View
from advisor.tui.views.export import ExportView
from advisor.tui.views.profile import ProfileView
from advisor.tui.views.result import ResultView
from advisor.tui.views.trials import TrialsView

VIEWS: tuple[type[View], ...] = (ResultView, ProfileView, TrialsView, ExportView)
