"""The channel between a process that runs the user's code and the session: messages one way, commands the other.

The user's code may write anything to any descriptor, so messages are checked and never unpickled. If the session's
process is gone, the trial's whole group dies.
"""

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
_LONGEST_BYTES = 2**26
_GARBAGE = "the target wrote to a file descriptor that is perf-advisor's"
# A message is written in one go, so a sender that pauses this long inside it has stopped or sent garbage. Seconds.
_STOPPED_S = 10.0


class GarbageError(OSError):
    """The received bytes are not a message: the user's code wrote to a descriptor that it did not open."""


def send_message(connection: Connection, message: Message) -> None:
    """Send one message. Raises OSError if the receiver has closed the channel."""
    values = printable_in(msgspec.to_builtins(message, enc_hook=_builtin))
    connection.send_bytes(msgspec.msgpack.encode((type(message).__name__, values)))


def receive_message(connection: Connection, timeout_s: float | None = None) -> Message | None:
    """Wait for one message; return None if nothing arrives within ``timeout_s`` seconds.

    Raises EOFError or OSError at the end of the channel, and GarbageError for no message or an unfinished one.
    """
    if not connection.poll(timeout_s):
        return None
    # Connection.send_bytes writes the length first. Connection.recv_bytes could wait for missing bytes for ever.
    (length,) = struct.unpack("!i", _read(connection, 4))
    if not 0 <= length <= _LONGEST_BYTES:
        raise GarbageError(_GARBAGE)
    try:
        name, values = msgspec.msgpack.decode(_read(connection, length))
        message: Message = msgspec.convert(values, _KINDS[name])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise GarbageError(_GARBAGE) from error
    return message


def _read(connection: Connection, length: int) -> bytes:
    """The next bytes of a message that has begun."""
    content = bytearray()
    while len(content) < length:
        if not connection.poll(_STOPPED_S):
            raise GarbageError("the process stopped in the middle of a message")
        if not (part := os.read(connection.fileno(), length - len(content))):
            raise EOFError
        content += part
    return bytes(content)


def _builtin(value: Any) -> Any:
    """The plain number in a NumPy scalar or a tensor, which a library may use as a counter."""
    return value.item() if hasattr(value, "item") else repr(value)


class Channel:
    """The trial's end: sends messages; a thread puts received ones into ``commands`` while the parent lives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.commands: queue.SimpleQueue[TrialCommand] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="trial-channel", daemon=True).start()

    def send(self, message: TrialMessage | RankJoined) -> None:
        """Send one message to the parent."""
        send_message(self._connection, message)

    def _listen(self) -> None:
        while True:
            try:
                self.commands.put(self._connection.recv())
            except (EOFError, OSError):
                os.killpg(os.getpgid(0), signal.SIGKILL)
