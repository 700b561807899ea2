"""Trials whose ranks are forked from their launcher with PyTorch imported, for tests that do not need torchrun.

The launcher and the ranks are the real ones. Torchrun starts an interpreter for each rank, which imports for seconds.
"""

import os
import socket
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NoReturn

from advisor.records import TrialSpec


def enter_trial(spec: TrialSpec, connection: Connection, asked_at: float) -> None:
    """Replace the runner's function of this name in the trial's process."""
    import torch.distributed.run

    from advisor.runner import trial_process

    torch.distributed.run.main = _torchrun
    trial_process._enter_trial(spec, connection, asked_at)


def _torchrun(arguments: Sequence[str]) -> None:
    """Start as many ranks as ``arguments`` say, and wait for their ends."""
    ranks = int(arguments[arguments.index("--nproc-per-node") + 1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    started = []
    for rank in range(ranks):
        started.append(os.fork())
        if started[-1] == 0:
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            _become_rank({**meeting, **{name: str(number) for name, number in numbers.items()}}, arguments[-1])
    assert [os.waitpid(pid, 0)[1] for pid in started] == [0] * ranks


def _become_rank(variables: dict[str, str], address: str) -> NoReturn:
    try:
        import torch

        from advisor.ranks.trial import main

        os.closerange(3, 1024)  # as torchrun does: with the socket of a launcher that has ended it would wait
        os.environ |= variables
        torch.set_num_threads(1)  # as with torchrun's OMP_NUM_THREADS
        main(address)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
