"""Random bytes in a trial's channel: refused in words, never a traceback."""

import contextlib
import os
import struct
from multiprocessing import Pipe

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.process.channel import GarbageError, Inbox

pytestmark = pytest.mark.fuzz
NAMES = st.sampled_from(["Activity", "Finished", "Ready", "BlockDone", "Forked", "nothing"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FRAMED = st.tuples(NAMES, VALUES).map(msgspec.msgpack.encode) | st.binary(min_size=1, max_size=200)


@settings(max_examples=20_000, deadline=None, database=None)
@given(content=FRAMED, whole=st.booleans(), cut=st.integers(0, 12))
def test_any_bytes_in_the_channel(content, whole, cut):
    ours, theirs = Pipe()
    with ours, theirs:
        os.write(theirs.fileno(), (struct.pack("!4sI", b"perf", len(content)) if whole else b"") + content[cut:])
        theirs.close()
        inbox = Inbox(ours)
        with contextlib.suppress(GarbageError, EOFError, ConnectionError):
            while True:
                inbox.read()
