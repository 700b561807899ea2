import os
import stat

import pytest

from advisor.errors import UsageError
from advisor.export.files import write_atomically
from advisor.files.config_file import read_text


def test_an_existing_file_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path):
    old = tmp_path / "old.yaml"
    old.write_text("a: 1\n")
    old.chmod(0o640)
    write_atomically(old, "a: 2\n")
    assert stat.S_IMODE(old.stat().st_mode) == 0o640

    umask = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new.yaml", "a: 1\n")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new.yaml").stat().st_mode) == 0o640


def test_a_symbolic_link_stays_a_link(tmp_path):
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_text("a: 1\n")
    link.symlink_to(real)
    write_atomically(link, "a: 2\n")
    assert link.is_symlink()
    assert real.read_text() == "a: 2\n"


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "tuned.yaml"
    path.write_text("old\n")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UsageError, match="No space left") as caught:
        write_atomically(path, "new\n")
    assert str(tmp_path) in caught.value.hint
    assert path.read_text() == "old\n"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "a: 1\n")
        assert os.read(reader, 100) == b"a: 1\n"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        ("pipe", "pipe cannot be written", "Check"),  # that nobody reads: it is not waited for
        ("no/tuned.yaml", "does not exist", "Make it first"),
        (".", "is a folder", "Name a file in it"),
    ],
)
def test_what_cannot_be_written_says_what_to_do(path, message, hint, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=message) as caught:
        write_atomically(tmp_path / path, "a: 1\n")
    assert hint in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UsageError, match="Permission denied"):
            write_atomically(tmp_path / "tuned.yaml", "a: 1\n")
    finally:
        tmp_path.chmod(0o700)


def test_reading_keeps_line_endings_and_says_what_is_wrong(tmp_path):
    path = tmp_path / "conf.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\n")
    text = read_text(path)
    assert text == "\ufeffa: 1\r\nb: 2\n"
    write_atomically(path, text)
    assert path.read_bytes() == b"\xef\xbb\xbfa: 1\r\nb: 2\n"
    with pytest.raises(UsageError, match="No such file"):
        read_text(tmp_path / "none.yaml")
