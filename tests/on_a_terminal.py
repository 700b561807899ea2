"""Terminals, for tests: a program on one, what it shows, the signals that it gets, and its end."""

import contextlib
import io
import os
import pty
import select
import subprocess
import threading
import time

SOON_S = 120.0  # generous, for loaded machines
_LOOK_EVERY_S = 0.02


class Terminal(io.StringIO):
    """A stream of this process that says it is a terminal's."""

    def isatty(self):
        return True


class OnATerminal:
    """A running program whose standard streams are a terminal's; killed on leaving where it has not ended."""

    def __init__(self, command, folder, environment):
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", **environment}
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **streams)
        os.close(slave)
        self.shown = b""
        self._hung_up = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        with contextlib.suppress(OSError):  # its last process has closed the terminal
            while not self._hung_up:
                if select.select([self._master], [], [], _LOOK_EVERY_S)[0]:
                    self.shown += os.read(self._master, 65536)
        os.close(self._master)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._hung_up = True
        self._reader.join(SOON_S)

    def wait_for(self, holds):
        """Wait until something holds, or the program has ended; the seconds that it took."""
        started = time.monotonic()
        while not holds() and self.process.poll() is None:
            assert time.monotonic() - started < SOON_S, self.shown[-2000:]
            time.sleep(_LOOK_EVERY_S)
        return time.monotonic() - started

    def ended(self):
        """Wait for the program's end: its exit code. All that it showed is known then."""
        code = self.process.wait(SOON_S)
        self._reader.join(SOON_S)
        return code
