"""The check of the rooms' sizes: what has more lines than its limit, or none, fails."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).parent.parent / ".ci" / "check_size.py"
spec = importlib.util.spec_from_file_location("check_size", FILE)
check_size = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_size)


@pytest.fixture
def limits(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[tool.house]\n"advisor/step" = 10\ntests = 3\n')
    monkeypatch.setattr(check_size, "ROOT", tmp_path)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        ({"advisor/step": 10, "tests": 3}, 0, "of     10"),
        ({"advisor/step": 11, "tests": 3}, 1, "too many"),
        ({"advisor/step": 10, "advisor/new": 1}, 1, "has no limit"),
    ],
)
def test_a_room_keeps_to_its_limit(lines, code, said, monkeypatch, capsys):
    monkeypatch.setattr(check_size, "lines_by_room", lambda: Counter(lines))
    assert check_size.main() == code
    assert said in capsys.readouterr().out
