"""The channel between a process that runs the user's code and the session: messages one way, commands the other.

The user's code may write anything to any descriptor, so messages are framed, checked and never unpickled. When the
session's process is gone, the trial's whole group dies.
"""

import fcntl
import os
import queue
import signal
import struct
import threading
from multiprocessing.connection import Connection
from typing import Any, get_args

import msgspec

from advisor.figures.formatting import printable_in
from advisor.records import BuilderReady, Forked, ForkEnded, RankJoined, TrialCommand, TrialMessage

Message = TrialMessage | BuilderReady | Forked | ForkEnded | RankJoined
_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Message)}
_MARK = b"perf"
_HEADER = struct.Struct(f"!{len(_MARK)}sI")
_LONGEST_BYTES = 2**28
# Descriptors from here on are free in most programs, and below the usual limit of 1024.
_OUT_OF_REACH = 900


class GarbageError(OSError):
    """The received bytes are no message: the user's code wrote to a descriptor that it did not open."""


class Inbox:
    """The receiving end: reads the bytes that are there, never waits for the rest of a message or reads beyond one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._header = True
        self._clear(_HEADER.size)

    def _clear(self, expected: int) -> None:
        self._got = bytearray()
        self._expected = expected

    def read(self) -> Message | None:
        """A message, once it is whole; the connection must be ready. Raises EOFError at the end, and GarbageError."""
        while True:
            chunk = os.read(self._connection.fileno(), self._expected - len(self._got))
            if not chunk:
                raise EOFError
            self._got += chunk
            if len(self._got) == self._expected and (message := self._whole()) is not None:
                return message
            if not self._connection.poll(0):
                return None

    def next(self, timeout_s: float | None) -> Message | None:
        """Wait for a message; None when nothing comes for ``timeout_s`` seconds. Raises EOFError and OSError."""
        while self._connection.poll(timeout_s):
            if (message := self.read()) is not None:
                return message
        return None

    def _whole(self) -> Message | None:
        if self._header:
            mark, length = _HEADER.unpack(bytes(self._got))
            if mark != _MARK or not 0 < length <= _LONGEST_BYTES:
                raise GarbageError("the target wrote to a file descriptor that is perf-advisor's")
            self._header = False
            self._clear(length)
            return None
        message = _decoded(bytes(self._got))
        self._header = True
        self._clear(_HEADER.size)
        return message


def out_of_reach(connection: Connection) -> Connection:
    """The connection under a high number, where that is allowed.

    A target that closes descriptors of low numbers leaves it alone, and no file that it opens gets the number.
    """
    try:
        handle = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, _OUT_OF_REACH)
    except OSError:
        return connection
    connection.close()
    return Connection(handle)


def send_message(connection: Connection, message: Message) -> None:
    """Send one message. Raises OSError when nobody receives it any more."""
    values = printable_in(msgspec.to_builtins(message, enc_hook=_builtin))
    content = msgspec.msgpack.encode((type(message).__name__, values))
    left = memoryview(_HEADER.pack(_MARK, len(content)) + content)
    while left:
        left = left[os.write(connection.fileno(), left) :]


def _builtin(value: Any) -> Any:
    """The number in a scalar of NumPy or a tensor, as a library may count with."""
    return value.item() if hasattr(value, "item") else repr(value)


def _decoded(content: bytes) -> Message:
    try:
        name, values = msgspec.msgpack.decode(content)
        message: Message = msgspec.convert(values, _KINDS[name])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise GarbageError("the target wrote to a file descriptor that is perf-advisor's") from error
    return message


class Channel:
    """The trial's end: sends messages and receives commands. A thread watches for the parent's end closing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = out_of_reach(connection)
        self._commands: queue.SimpleQueue[TrialCommand] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="trial-channel", daemon=True).start()

    def send(self, message: TrialMessage | RankJoined) -> None:
        """Send one message to the parent."""
        send_message(self._connection, message)

    def next_command(self) -> TrialCommand:
        """Wait for the parent's next command."""
        return self._commands.get()

    def _listen(self) -> None:
        while True:
            try:
                self._commands.put(self._connection.recv())
            except (EOFError, OSError):
                os.killpg(os.getpgid(0), signal.SIGKILL)
