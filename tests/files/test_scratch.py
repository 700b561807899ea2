"""The process's own temporary folder: short, private, and gone in the end, also where its process was killed."""

import os
import subprocess
import sys
import time

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
    made.folder().joinpath("lock").unlink()
    made.folder().rmdir()
    assert made.folder().is_dir()
    made.remove()


KILLED = """
import os, signal, sys
from advisor.files import scratch
scratch._places = lambda: iter([sys.argv[1]])
(scratch.SCRATCH.folder() / "cc1.s").write_text("half an assembly")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(place):
    subprocess.run([sys.executable, "-c", KILLED, str(place)], check=False, timeout=60)
    assert len(list(place.iterdir())) == 1
    living, other = Scratch(), Scratch()
    kept = {living.folder(), other.folder()}
    assert set(place.iterdir()) == kept
    for one in (living, other):
        one.remove()


def test_a_folder_without_a_lock_is_removed_when_it_is_old(place):
    new, old = place / f"{scratch._prefix()}new", place / f"{scratch._prefix()}old"
    for folder in (new, old):
        folder.mkdir()
    os.utime(old, (time.time() - 7200,) * 2)
    strange = place / f"{scratch._prefix()}link"
    strange.symlink_to(new)
    made = Scratch()
    made.folder()
    assert new.is_dir()
    assert strange.is_symlink()
    assert not old.exists()
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
