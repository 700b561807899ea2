"""The process's own temporary folder: short, private, and gone in the end."""

import os

import pytest

from advisor.errors import UsageError
from advisor.files import scratch
from advisor.files.scratch import Scratch


@pytest.fixture
def place(tmp_path_factory, monkeypatch):
    """The only folder for temporary files; short, as far as pytest's are."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr(scratch, "_places", lambda: iter([str(folder)]))
    return folder


def test_a_folder_of_our_own_that_is_removed(place):
    made = Scratch()
    folder = made.folder()
    assert made.folder() == folder
    assert folder.parent == place
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "pymp-x").mkdir()
    made.remove()
    assert not list(place.iterdir())


def test_it_is_made_again_when_somebody_removed_it(place):
    made = Scratch()
    made.folder().rmdir()
    assert made.folder().is_dir()
    made.remove()


def test_a_long_or_missing_folder_is_passed_over(tmp_path, monkeypatch):
    long = tmp_path / ("long" * 40)
    long.mkdir()
    monkeypatch.setattr(scratch, "_usual", lambda: str(long))
    made = Scratch()
    folder = made.folder()
    assert len(os.fsencode(folder)) + len("/listener-12345678") < 104
    assert not list(long.iterdir())
    made.remove()
    monkeypatch.setattr(scratch, "_places", lambda: iter([str(tmp_path / "gone")]))
    with pytest.raises(UsageError, match="no folder for temporary files"):
        Scratch().folder()
