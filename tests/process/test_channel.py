"""The channel between a trial and the session: what the target may write to it ends the trial, and nothing else."""

import math
import os
import time
from multiprocessing import Pipe

import numpy as np
import pytest

from advisor.process.channel import _HEADER, _MARK, GarbageError, Inbox, send_message
from advisor.records import Activity, Block, BlockDone, Finished, Outcome, TrialResult

MESSAGES = [
    Activity("warming \x1b[31m up \ud800"),
    BlockDone(Block(3, 24, np.float64(0.5))),
    Finished(TrialResult(Outcome.MEASURED, losses=(1.0, math.nan, math.inf), notes=("x" * 200_000,))),
]


@pytest.fixture
def ends():
    ours, theirs = Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_messages_arrive_as_they_were_sent_one_by_one(ends):
    ours, theirs = ends
    inbox = Inbox(ours)
    for message in MESSAGES[:2]:
        send_message(theirs, message)
    assert inbox.next(5.0) == Activity("warming \\x1b[31m up \\ud800")
    assert ours.poll(0)  # the second is still in the pipe: who waits for the connection is woken
    assert inbox.next(5.0) == BlockDone(Block(3, 24, 0.5))
    assert inbox.next(0.0) is None
    theirs.close()
    with pytest.raises(EOFError):
        inbox.next(5.0)


def test_a_message_in_parts_is_not_waited_for(ends):
    ours, theirs = ends
    inbox = Inbox(ours)
    os.write(theirs.fileno(), _HEADER.pack(_MARK, 1000) + b"x" * 10)
    started = time.monotonic()
    assert inbox.read() is None
    assert inbox.next(0.05) is None
    assert time.monotonic() - started < 2.0


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xfb" * 4,  # a negative length, as multiprocessing has it
        b"\xff\xff\xff\xff" + b"\x7f" * 8,  # and a huge one
        b"a line of text of the target\n",
        _HEADER.pack(_MARK, 0),
        _HEADER.pack(_MARK, 2**31),
        _HEADER.pack(_MARK, 3) + b"\x00\x01\x02",
        _HEADER.pack(_MARK, 1) + b"\xc0",
        _HEADER.pack(_MARK, 9) + b"\x92\xa6Forked\xc0",
    ],
)
def test_garbage_is_no_message(ends, garbage):
    ours, theirs = ends
    os.write(theirs.fileno(), garbage)
    with pytest.raises(GarbageError, match="file descriptor"):
        Inbox(ours).next(5.0)
