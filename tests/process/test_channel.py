"""The channel between a trial and the session: what the target may write to it ends the trial, and nothing else."""

import math
import os
from multiprocessing import Pipe

import numpy as np
import pytest

from advisor.process import channel
from advisor.process.channel import GarbageError, receive_message, send_message
from advisor.records import Activity, Block, Outcome, TrialResult


@pytest.fixture
def ends():
    ours, theirs = Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_messages_arrive_as_they_were_sent_one_by_one(ends):
    ours, theirs = ends
    send_message(theirs, Activity("warming \x1b[31m up \ud800"))
    send_message(theirs, Block(3, 24, np.float64(0.5)))
    assert receive_message(ours) == Activity("warming \\x1b[31m up \\ud800")
    assert ours.poll(0)  # the second is still in the pipe: who waits for the connection is woken
    assert receive_message(ours) == Block(3, 24, 0.5)
    assert receive_message(ours, 0.0) is None
    send_message(theirs, TrialResult(Outcome.MEASURED, losses=(1.0, math.inf), notes=("x" * 50_000,)))
    assert receive_message(ours).losses == (1.0, math.inf)
    theirs.close()
    with pytest.raises(EOFError):
        receive_message(ours)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xfb" * 4,  # a negative length
        b"\xff\xff\xff\xff" + b"\x7f" * 8,  # and a huge one
        b"a line of text of the target\n",
        b"\0\0\0\0",
        b"\0\0\0\3\x00\x01\x02",
        b"\0\0\0\1\xc0",
        b"\0\0\0\x09\x92\xa6Forked\xc0",
    ],
)
def test_garbage_is_no_message(ends, garbage):
    ours, theirs = ends
    os.write(theirs.fileno(), garbage)
    with pytest.raises(GarbageError, match="file descriptor"):
        receive_message(ours)


@pytest.mark.parametrize("part", [b"\0\0", b"\0\0\0\x09\x92\xa6For"], ids=["of the length", "of the content"])
@pytest.mark.parametrize("dies", [True, False])
def test_half_a_message_blocks_nobody(ends, part, dies, monkeypatch):
    """A sender that dies closes its end; where one of its children has that too, or it hangs, nothing more comes."""
    monkeypatch.setattr(channel, "_STOPPED_S", 0.1)
    ours, theirs = ends
    os.write(theirs.fileno(), part)
    if dies:
        theirs.close()
    with pytest.raises(EOFError if dies else GarbageError):
        receive_message(ours)
