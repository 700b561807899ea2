"""A rank of a trial: the program that torchrun starts in each of its processes."""

import datetime
import math
import os
import pickle
import socket
import sys
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.rendezvous import rendezvous

from advisor.process.channel import Channel
from advisor.process.household import lead_own_group
from advisor.process.logs import flush_streams, redirect_output
from advisor.records import Finished, RankJoined, TrialSpec

# For the machines to meet before a trial is sent.
_MEETING = datetime.timedelta(seconds=60)
# A rank that lost another waits before it says so: the launcher and torchrun see the other's end first. Seconds.
_OTHER_FIRST_S = 3.0


def _spec_of_all(own: TrialSpec | None) -> TrialSpec:
    """The trial: where several machines take part, the ranks on that of the session send it to the others."""
    if int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1:
        meeting, _, _ = next(rendezvous("env://", timeout=_MEETING))
        store = PrefixStore("trial", meeting)  # apart from the process group's keys
        if own is not None:
            store.set("spec", pickle.dumps(own).hex())
        own = pickle.loads(bytes.fromhex(store.get("spec").decode()))  # noqa: S301 - of the same person's session
    assert own is not None, "torchrun was started for a trial"
    return own


def _may_have_lost_another(error: BaseException | None) -> bool:
    """Whether an error may follow from another rank's end. Gloo's errors have no class: they name its source file."""
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and "gloo/" in str(error))


@record
def main(address: str) -> None:
    """Run this rank's part of a trial. What it raises is sent, and raised again for torchrun to see.

    ``address`` is the launcher's socket, over which the trial comes; empty on a machine that follows another's session.
    """
    import advisor.trial.preload  # noqa: F401 - the same start as in the fork server
    from advisor.ranks.trial import RankOfScript, RankTrial
    from advisor.trial.raised import result_of

    lead_own_group()
    channel: Any = SimpleNamespace(send=lambda message: None)  # a machine that follows has no session
    spec: TrialSpec | None = None
    deadline = math.inf
    if address:
        meeting = socket.socket(socket.AF_UNIX)
        meeting.connect(address)
        connection = Connection(meeting.detach())
        spec, sys.path[:], deadline = connection.recv()
        assert spec is not None
        redirect_output(spec.log_path)
        channel = Channel(connection)
        channel.send(RankJoined(int(os.environ["RANK"]), os.getpid()))
    spec = _spec_of_all(spec)
    failure: BaseException | None = None
    try:
        by_script = spec.world is not None and spec.world.script
        result = (RankOfScript if by_script else RankTrial)(spec, channel, deadline).run()
    except BaseException as error:  # whatever the user's code raises is the trial's result
        failure, result = error, result_of(error)
    flush_streams()
    if failure is not None and any(map(_may_have_lost_another, (failure, failure.__cause__))):
        time.sleep(_OTHER_FIRST_S)
    channel.send(Finished(result))
    if failure is not None:
        raise failure
    os._exit(0)  # user code may have left threads, and NCCL need not say goodbye
