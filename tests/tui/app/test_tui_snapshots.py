"""Pictures of the views at two sizes, beside those of tests/tui/test_tui_pictures.py.

`pytest tests/tui --snapshot-update` takes them again; look at each before committing.
"""

import pytest
from test_tui_pictures import OF_VIEWS
from tui_pictures import PICTURES, SMALL_TOO, is_unchanged
from tui_pilot import LARGE, SMALL

CASES = [
    pytest.param(name, size, id=f"{name}-{size[0]}x{size[1]}")
    for size in (SMALL, LARGE)
    for name in PICTURES
    if (name in SMALL_TOO if size == SMALL else name not in OF_VIEWS)
]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_picture(snap_compare, name, size, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.yaml").touch()
    assert is_unchanged(snap_compare, name, size)
