"""The process of the fork server: it imports once what all trials need.

Nothing here may initialise CUDA or start threads, since the fork server forks afterwards. It ignores Ctrl+C, which is
meant for the session. Its children ignore it too, until each leads its own process group.
"""

import atexit
import gc
import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the process is started with the signal blocked

from advisor.process import household  # noqa: E402
from advisor.process.meanwhile import collector_waits  # noqa: E402

_SERVES = household.end_with_session()
FAILURE: BaseException | None = None
try:
    with collector_waits():
        import torch
        import torch._dynamo  # every optimizer's constructor imports it, which takes a second
        import torchvision  # noqa: F401

        import advisor.trial.main  # noqa: F401
        from advisor.recipe.catalog import load_catalog

        load_catalog()
        assert not torch.cuda.is_initialized(), "the fork server must not hold a CUDA context"
        gc.freeze()  # until its first step, a trial need not look at the objects imported here
except Exception as error:  # each trial reports it: PyTorch cannot be imported again after a failure
    FAILURE = error
if _SERVES:
    for number in (signal.SIGTERM, signal.SIGHUP):  # before this, a signal ends the process at once
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, household.leave)
    atexit.register(household.end_descendants)
atexit.register(gc.unfreeze)  # libraries take uncollected objects for leaked ones when the fork server ends
