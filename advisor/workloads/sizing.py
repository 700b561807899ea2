"""The batch of a model that came without data: as large as the machine steps through in well under a second.

The estimate counts floating-point operations on tensors without contents. It computes nothing and needs no clock, so
every trial of a session comes to the same batch.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from advisor.machine.host import usable_cores
from advisor.records import Mode, TargetSpec
from advisor.step.batch import map_tensors, splitter, tensors_of
from advisor.workloads.hubs.contract import Samples

# Largest batch by default: samples.
LARGEST_BATCH = 32
# Longest step that a batch is made for: seconds.
_STEP_S = 0.3
# Rate of a training step in float32: FLOP/s of one core that others use as well. More than these add little.
_CORE_FLOPS_PER_S = 12e9
_MOST_CORES = 16
# Work of one step on a GPU: FLOP. A data-centre GPU does it in 20 to 200 ms.
_GPU_STEP_FLOPS = 4e12
# A training step does the forward pass, and twice as much in the backward pass.
_TRAIN_PASSES = 3
# Batch of the count, and the smallest for training with batch normalisation, which refuses single values.
_COUNTED = 2
_PATCH = 3 * 16 * 16  # numbers of a patch of an image
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def batch_size_for(model: nn.Module, samples: Samples, mode: Mode, spec: TargetSpec) -> tuple[int, str]:
    """Choose the batch size: from ``--batch-size`` or ``--input``, else as large as the machine can compute quickly.

    Returns it with a note on the choice, which is empty if the person made it.
    """
    wanted = spec.batch_size or (spec.input_shape[0] if spec.input_shape else None) or samples.fixed_size
    if wanted is not None:
        return wanted, ""
    on_gpu = runs_on_gpu(spec)
    work = _GPU_STEP_FLOPS if on_gpu else _STEP_S * _CORE_FLOPS_PER_S * min(usable_cores(), _MOST_CORES)
    least = _COUNTED if mode is Mode.TRAIN and any(isinstance(m, _NORMS) for m in model.modules()) else 1
    batch = samples.make(_COUNTED)
    counted = counted_run(model, batch)
    # What cannot be counted uses each parameter for every position: a token id, or a patch of an image.
    positions = (one.numel() // (_PATCH if one.is_floating_point() else 1) for one in tensors_of(batch))
    estimated = 2 * (max(positions, default=0) or _COUNTED) * sum(one.numel() for one in model.parameters())
    flops = (counted[1] if counted and counted[1] else estimated) / _COUNTED
    fits = max(1, int(work / max(1.0, flops * (_TRAIN_PASSES if mode is Mode.TRAIN else 1))))
    size = max(least, min(LARGEST_BATCH, 1 << (fits.bit_length() - 1)))  # a power of two
    machine = "this GPU" if on_gpu else "this CPU"
    note = f"a batch of {size} {samples.counts}, sized for {machine}; --batch-size N sets another, --input its samples"
    return size, note


def runs_on_gpu(spec: TargetSpec) -> bool:
    """Whether batches are made for a GPU, as far as the options and the machine say."""
    return spec.device != "cpu" and torch.cuda.is_available()


def counted_run(model: nn.Module, batch: Any) -> tuple[Any, int] | None:
    """The output of a forward pass on tensors without contents, and its FLOPs; None where the model cannot run so."""
    if isinstance(batch, Mapping):  # models look at the values of masks, which change next to nothing of the work
        bare = {name: value for name, value in batch.items() if not name.endswith("mask")}
        if len(bare) < len(batch) and (ran := counted_run(model, bare)) is not None:
            return ran
    split = splitter(model, with_target=False)(map_tensors(lambda tensor: tensor.to("meta"), batch))
    empty: dict[int, Any] = {id(one): torch.empty_like(one, device="meta") for one in model.buffers()}
    for one in model.parameters():  # the counter would follow gradients, though none are made
        empty[id(one)] = nn.Parameter(torch.empty_like(one, device="meta"), requires_grad=False)
    try:
        twin = copy.deepcopy(model, empty)
        with torch.no_grad(), torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
            return twin(*split.args, **split.kwargs), counter.get_total_flops()
    except Exception:  # a model may look at its values, and whatever code it has runs here
        return None
