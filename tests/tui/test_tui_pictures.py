"""One picture of each view; tests/tui/app has the others."""

import pytest
from tui_pictures import is_unchanged
from tui_pilot import LARGE

from advisor.tui.views import VIEWS

OF_VIEWS = [view.id for view in VIEWS]


@pytest.mark.parametrize("name", OF_VIEWS)
def test_picture(snap_compare, name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    (tmp_path / "tuned.yaml").touch()
    assert is_unchanged(snap_compare, name, LARGE)
