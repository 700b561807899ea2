"""Files that are open at a fork: what a child reads leaves its parent's position, and the next child's, alone."""

import os
from pathlib import Path

from advisor.trial.forked_files import read_independently


def in_a_child(run):
    """Return the text that a function returns in a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, run().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as told:
        text = told.read()
    os.waitpid(child, 0)
    return text


def test_each_child_reads_on_from_where_its_parent_stands(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    with path.open("rb", buffering=0) as file:
        file.read(2)

        def read_on():
            read_independently()
            return file.read(3).decode()

        assert [in_a_child(read_on) for _ in range(2)] == ["234", "234"]
        assert file.read(1) == b"2"


def test_a_file_that_is_gone_by_its_name_is_read_and_one_that_is_written_stays_shared(tmp_path):
    data, log = tmp_path / "data", tmp_path / "log"
    data.write_text("contents", encoding="utf-8")
    with data.open("rb", buffering=0) as file, log.open("ab", buffering=0) as written:
        data.unlink()

        def read_and_write():
            read_independently()
            written.write(b"child ")
            return file.read().decode()

        assert in_a_child(read_and_write) == "contents"
        written.write(b"parent")
        assert file.read() == b"contents"
    assert log.read_bytes() == b"child parent"


def test_the_flag_for_new_programs_and_the_standard_streams_stay_as_they_are(tmp_path):
    path = tmp_path / "data"
    path.touch()
    with path.open("rb") as file:
        os.set_inheritable(file.fileno(), True)

        def flags():
            streams = [os.fstat(number).st_ino for number in range(3)]
            read_independently()
            return repr((os.get_inheritable(file.fileno()), streams == [os.fstat(n).st_ino for n in range(3)]))

        assert in_a_child(flags) == "(True, True)"
    assert Path(path).exists()
