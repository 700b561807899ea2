"""What the fork server imports once, so that a trial process starts with it: torch, the runtime and the recipes.

Nothing here may initialise CUDA or start threads: the fork server forks after it. It ignores Ctrl+C, which is for the
session, and so do its children until they lead a group of their own. ``trial/household.py`` has its other duties.
"""

from __future__ import annotations

import atexit
import gc
import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it is started with the signal blocked

from advisor.trial import household  # noqa: E402

household.keep()

import torch  # noqa: E402
import torch._dynamo  # noqa: E402 - every optimizer's constructor imports it: a second in each trial
import torchvision  # noqa: E402, F401

import advisor.trial.main  # noqa: E402, F401
from advisor.catalog import load_catalog  # noqa: E402

load_catalog()
assert not torch.cuda.is_initialized(), "the fork server must not hold a CUDA context"
household.keep_compiled_code()
gc.collect()
gc.freeze()  # until its first step a trial need not look at all that was imported here
atexit.register(gc.unfreeze)  # what is never collected, libraries take for leaked when the fork server ends
