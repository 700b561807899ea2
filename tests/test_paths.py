"""Paths that no file has, or that one may not look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import TargetError
from advisor.files.paths import no_file
from advisor.records import TargetSpec
from advisor.target.entrypoint import load_target


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A folder that one may not enter, also as root."""
    usual = Path.stat

    def stat(path, **options):
        if path.parent == tmp_path / "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return usual(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "closed"


def test_a_file_that_cannot_be_reached_is_told_apart_from_one_that_is_not_there(closed):
    assert no_file(closed / "a.py", "closed/a.py") == "closed/a.py cannot be reached: Permission denied."
    assert no_file("a.py") == "there is no file a.py."
    assert no_file("a\0b") == "there is no file a\0b."


def test_a_target_that_cannot_be_reached_is_refused(closed, tmp_path):
    with pytest.raises(TargetError, match=r"^closed/target.py cannot be reached: Permission denied\.$"):
        load_target(TargetSpec("closed/target.py", str(tmp_path)))
