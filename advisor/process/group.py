"""The process group of a trial."""

from __future__ import annotations

import os
import signal

from advisor.process import household


def lead_own_group() -> None:
    """Leave the terminal's process group: Ctrl+C there is for the session, which ends its trials itself.

    The fork server's children ignore it until then; afterwards it means what it means to Python.
    """
    if os.getpgid(0) != os.getpid():  # a fresh interpreter leads its group already
        os.setsid()
    household.leave()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):  # not the fork server's
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
