"""The process's own temporary folder: short, private, and gone in the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.errors import UsageError
from advisor.files import folders
from advisor.files.folders import scratch_folder


@pytest.fixture(autouse=True)
def _asked_anew():
    scratch_folder.cache_clear()
    yield
    scratch_folder.cache_clear()


def test_a_folder_of_our_own_that_ends_with_the_process():
    script = (
        "import os\nfrom advisor.files.folders import scratch_folder\nmade = scratch_folder()\n"
        "(made / 'pymp-x').mkdir()\nprint(made, made == scratch_folder(), oct(made.stat().st_mode & 0o777))\n"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert told[1:] == ["True", "0o700"]
    assert not Path(told[0]).exists()


def test_a_long_or_missing_folder_is_passed_over(tmp_path, monkeypatch):
    long = tmp_path / ("long" * 40)
    long.mkdir()
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(long))
    assert len(os.fsencode(scratch_folder())) + len("/listener-12345678") < 104
    assert not list(long.iterdir())
    scratch_folder().rmdir()
    scratch_folder.cache_clear()
    monkeypatch.setattr(folders, "_LONGEST", 0)
    with pytest.raises(UsageError, match="no folder for temporary files"):
        scratch_folder()
