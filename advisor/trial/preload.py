"""What the fork server imports once, so that a trial process starts with it: torch, the runtime and the recipes.

Nothing here may initialise CUDA or start threads: the fork server forks after it. It ignores Ctrl+C, which is for the
session, once it runs; here it does so while it still imports.
"""

from __future__ import annotations

import gc
import signal

_before = signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it is started with the signal blocked
try:
    import torch
    import torch._dynamo  # every optimizer's constructor imports it: a second in each trial
    import torchvision  # noqa: F401

    import advisor.trial.main  # noqa: F401
    from advisor.catalog import load_catalog

    load_catalog()
    assert not torch.cuda.is_initialized(), "the fork server must not hold a CUDA context"
    gc.collect()
    gc.freeze()  # a trial's garbage collection need not look at all that was imported here
finally:
    signal.signal(signal.SIGINT, _before)
