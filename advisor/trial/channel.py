"""The trial's end of its private channel: messages out, commands in. When the parent is gone, the whole group dies."""

from __future__ import annotations

import os
import queue
import signal
import threading
from multiprocessing.connection import Connection

from advisor.records import TrialCommand, TrialMessage


class Channel:
    """Sends messages and receives commands. A thread watches for the parent's end closing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._commands: queue.SimpleQueue[TrialCommand] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="trial-channel", daemon=True).start()

    def send(self, message: TrialMessage) -> None:
        """Send one message to the parent."""
        self._connection.send(message)

    def next_command(self) -> TrialCommand:
        """Wait for the parent's next command."""
        return self._commands.get()

    def _listen(self) -> None:
        while True:
            try:
                self._commands.put(self._connection.recv())
            except (EOFError, OSError):
                os.killpg(os.getpgid(0), signal.SIGKILL)
