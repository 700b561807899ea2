"""The start of a script in several processes, for settings that are applied under torchrun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from advisor.experiment.state import SessionState
from advisor.records import ScalingRecord, Value

# The strategies for which a process is started for each GPU.
_OVER_RANKS = ("ddp", "fully_shard")


def gpus_to_start(state: SessionState, settings: Mapping[str, Value]) -> int:
    """The number of processes that settings are for."""
    over_ranks = settings.get("parallel.strategy") in _OVER_RANKS
    return state.scaling.gpus if state.scaling and over_ranks else 1


def launch_lines(state: SessionState, settings: Mapping[str, Value]) -> Iterator[str]:
    """The lines that start a script with these settings on several GPUs; none for settings of one process."""
    gpus = gpus_to_start(state, settings)
    if gpus == 1 or state.scaling is None:
        return
    where = f", on each of the {state.scaling.machines} machines" if state.scaling.machines > 1 else ""
    yield f"Start your script in a process for each GPU{where}:"
    yield f"  {launch_command(state.scaling)}"
    size = settings.get("data.batch_size") or (state.facts.workload.batch_size if state.facts else None)
    if isinstance(size, int):
        yield f"A batch of {size} is that of all {gpus} processes together, {size / gpus:g} samples in each."


def launch_command(scaling: ScalingRecord) -> str:
    """The command that starts a script in a process for each GPU; the same on each machine."""
    here = f"--nproc-per-node {scaling.gpus // scaling.machines} your_script.py"
    if scaling.machines == 1:
        return f"torchrun --standalone {here}"
    return f"torchrun --nnodes {scaling.machines} --rdzv-backend c10d --rdzv-endpoint HOST:PORT {here}"
