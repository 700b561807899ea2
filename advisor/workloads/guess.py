"""Made-up batches for a model that came without data: their inputs, labels and size.

The batch size is chosen so that a step takes well under a second. The estimate counts floating-point operations on
meta tensors. It needs no clock, so every trial of a session gets the same batch size.
"""

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from advisor.errors import TargetError
from advisor.machine.host import usable_cores
from advisor.records import Mode, TargetSpec
from advisor.step.batch import ForwardInputs, map_tensors, splitter, tensors_of
from advisor.step.loss import main_output
from advisor.workloads.hubs.contract import present
from advisor.workloads.loop import Loop, batch_size_of, describe, resize_batch

LARGEST_BATCH = 32  # samples, by default
_STEP_S = 0.3  # the longest step on a CPU, in seconds
_CORE_FLOPS_PER_S = 12e9  # FLOP/s of a training step in float32, on one busy core
_MOST_CORES = 16  # further cores add little
_GPU_STEP_FLOPS = 4e12  # the work of one step on a GPU, in FLOP; a data-centre GPU takes 20 to 200 ms
_TRAIN_PASSES = 3  # a step in forward passes: a backward pass is twice the work of a forward pass
_COUNTED = 2  # samples in the counted batch; also the fewest in training, since batch normalisation needs two
_PATCH = 3 * 16 * 16  # values in a patch of an image
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_LENGTHS = (64, 16)
_LAYERS_TRIED = 3


def generator_for(*shape: int) -> torch.Generator:
    """A generator whose seed depends only on a shape, so that every trial sees the same batch."""
    return torch.Generator().manual_seed(sum((index + 1) * size for index, size in enumerate(shape)))


def noise(*shape: int) -> torch.Tensor:
    """Normally distributed numbers, like normalised images and sound."""
    return torch.randn(*shape, generator=generator_for(*shape))


def whole_numbers(below: int, *shape: int, at_least: int = 0) -> torch.Tensor:
    """Uniformly distributed integers from ``at_least`` up to, but without, ``below``: token ids or labels."""
    low = at_least if at_least < below else 0
    return torch.randint(low, max(below, low + 1), shape, generator=generator_for(*shape, below))


def with_labels(inputs: Callable[[int], Any], output: Any, size: int) -> Loop:
    """Batches ``(*inputs, labels)``, with labels that fit the model's ``output`` on ``size`` samples.

    The labels are one class per sample, pixel or position, if the output has scores for it. Otherwise there are none.
    """
    try:
        scores = main_output(output)
    except TypeError:
        scores = torch.empty(0)
    if scores.dim() < 2 or scores.shape[0] != size or 0 in scores.shape:
        return Loop(data=inputs)
    classes, rest = scores.shape[1], scores.shape[2:]

    def make(size: int) -> tuple[Any, ...]:
        made = inputs(size)
        return (*(made if isinstance(made, tuple) else (made,)), whole_numbers(classes, size, *rest))

    return Loop(data=make, mode=Mode.TRAIN, optimizer=momentum)


def typed(tensor: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Convert a floating-point input to the model's floating-point type."""
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return tensor.to(own) if tensor.is_floating_point() else tensor


def with_samples(workload: Loop, spec: TargetSpec) -> Loop:
    """Give a workload without data made-up batches of a size that fits the machine. Raises TargetError."""
    train = (spec.mode or workload.mode) != Mode.INFER
    made = (adapter.samples(workload.model, spec, train=train) for adapter in present())
    found = next((one for one in made if one is not None), None) or samples(workload.model, spec)
    has_more = workload.loss is not None or workload.optimizer is not None
    mode = Mode(spec.mode or workload.mode or found.mode or (Mode.TRAIN if has_more else Mode.INFER))
    size, note = batch_size_for(workload.model, found, mode, spec)
    return replace(
        workload,
        data=found.data,
        loss=found.loss if workload.loss is None else workload.loss,
        optimizer=found.optimizer if workload.optimizer is None else workload.optimizer,
        mode=mode,
        notes=[*workload.notes, *found.notes, *note],
        usual_size=size,
        hint=f"The inputs were made up: {describe(found.data(size))}. {_advice(workload.model)}",
    )


def samples(model: nn.Module, spec: TargetSpec) -> Loop:
    """Made-up inputs without labels. Raises TargetError if their shape cannot be inferred."""
    if spec.input_shape is not None:
        return Loop(data=_inputs(model, spec.input_shape[1:]), notes=["random inputs of the shape of --input"])
    example = getattr(model, "example_input_array", None)
    if example is not None and next(tensors_of(example), None) is not None:
        size = batch_size_of(example)
        return Loop(
            data=lambda wanted: example if wanted == size else resize_batch(example, wanted),
            notes=["the model's example_input_array as its batch"],
            usual_size=size,
        )
    # Some layers show which inputs they take. For each: the sample shapes that it may take, usual shapes first.
    shapes = ([*made(one)] for one in model.modules() for kind, made in _BY_LAYER.items() if isinstance(one, kind))
    for shape in itertools.chain.from_iterable(itertools.islice(shapes, _LAYERS_TRIED)):
        make = _inputs(model, shape)
        if counted_run(model, make(_COUNTED)) is not None:
            text = "x".join(map(str, shape))
            note = f"random inputs of {text} a sample, by the model's first layers; --input Nx{text} sets another shape"
            return Loop(data=make, notes=[note])
    raise TargetError(f"{type(model).__name__} came without data, and its inputs cannot be inferred.", _advice(model))


def _advice(model: nn.Module) -> str:
    required = ForwardInputs(model).required
    if len(required) > 1:
        names = ", ".join(required)
        return (
            f"Its forward needs {names}. If one shape fits all of them, give --input SHAPE, for example "
            f"--input 8x3x224x224. Or return (model, ({names})) from a build() of your own."
        )
    return "Give --input SHAPE, for example --input 64x3x224x224, or return (model, data)."


def _inputs(model: nn.Module, shape: tuple[int, ...]) -> Callable[[int], Any]:
    """Batches of token ids if the model begins with an embedding, else of random numbers in the model's type."""
    count = max(1, len(ForwardInputs(model).required))
    first = next((module for module in model.modules() if isinstance(module, tuple(_BY_LAYER))), None)
    tokens = first.num_embeddings if isinstance(first, nn.Embedding) else 0

    def make(size: int) -> Any:
        made = whole_numbers(tokens, size, *shape) if tokens else typed(noise(size, *shape), model)
        return made if count == 1 else tuple(made.clone() for _ in range(count))

    return make


_SIDES = (224, 32, 28, 64, 128, 256, 512)
_BY_LAYER: dict[type[nn.Module], Callable[[Any], list[tuple[int, ...]]]] = {
    nn.Embedding: lambda layer: [*((length,) for length in _LENGTHS), ()],
    nn.Linear: lambda layer: [(layer.in_features,), *((length, layer.in_features) for length in _LENGTHS)],
    nn.Conv1d: lambda layer: [(layer.in_channels, length) for length in (16000, 1024, 128)],
    nn.Conv2d: lambda layer: [(layer.in_channels, side, side) for side in _SIDES],
    nn.Conv3d: lambda layer: [(layer.in_channels, 16, side, side) for side in (112, 64, 32)],
    nn.RNNBase: lambda layer: [(length, layer.input_size) for length in _LENGTHS],
}


def image_samples(model: nn.Module, shape: tuple[int, ...], *, train: bool) -> Loop:
    """Random images of one shape, with labels that fit the model's outputs."""
    images = _inputs(model, shape)
    run = counted_run(model, images(_COUNTED)) if train else None
    return with_labels(images, run[0] if run else None, _COUNTED)


#: The usual optimizer for image models.
momentum = partial(torch.optim.SGD, lr=0.01, momentum=0.9)


def batch_size_for(model: nn.Module, samples: Loop, mode: Mode, spec: TargetSpec) -> tuple[int, list[str]]:
    """Return the batch size, with notes: the user's, or else the largest for which a step is quick on this machine."""
    wanted = spec.batch_size or (spec.input_shape[0] if spec.input_shape else None) or samples.usual_size
    if wanted is not None:
        return wanted, []
    on_gpu = runs_on_gpu(spec)
    work = _GPU_STEP_FLOPS if on_gpu else _STEP_S * _CORE_FLOPS_PER_S * min(usable_cores(), _MOST_CORES)
    least = _COUNTED if mode is Mode.TRAIN and any(isinstance(m, _NORMS) for m in model.modules()) else 1
    batch = samples.data(_COUNTED)
    counted = counted_run(model, batch)
    # If FLOPs cannot be counted, assume that each position (a token, or an image patch) uses every parameter.
    positions = (one.numel() // (_PATCH if one.is_floating_point() else 1) for one in tensors_of(batch))
    estimated = 2 * (max(positions, default=0) or _COUNTED) * sum(one.numel() for one in model.parameters())
    flops = (counted[1] if counted and counted[1] else estimated) / _COUNTED
    fits = max(1, int(work / max(1.0, flops * (_TRAIN_PASSES if mode is Mode.TRAIN else 1))))
    size = max(least, min(LARGEST_BATCH, 1 << (fits.bit_length() - 1)))  # a power of two
    note = f"a batch of {size} samples, sized for this {'GPU' if on_gpu else 'CPU'}; --batch-size N sets another"
    return size, [f"{note}, --input its samples"]


def runs_on_gpu(spec: TargetSpec) -> bool:
    """Whether batches are made for a GPU: the machine has one, and --device does not say cpu."""
    return spec.device != "cpu" and torch.cuda.is_available()


def counted_run(model: nn.Module, batch: Any) -> tuple[Any, int] | None:
    """The output of a forward pass on meta tensors, and its FLOPs; None if the model fails on meta tensors."""
    if isinstance(batch, Mapping):  # models read the values of masks; masks hardly change the work
        batch = {name: value for name, value in batch.items() if not name.endswith("mask")}
    split = splitter(model, with_target=False)(map_tensors(lambda tensor: tensor.to("meta"), batch))
    empty: dict[int, Any] = {id(one): torch.empty_like(one, device="meta") for one in model.buffers()}
    for one in model.parameters():  # without gradients, which the counter would follow
        empty[id(one)] = nn.Parameter(torch.empty_like(one, device="meta"), requires_grad=False)
    try:
        twin = copy.deepcopy(model, empty)
        with torch.no_grad(), torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
            return twin(*split.args, **split.kwargs), counter.get_total_flops()
    except Exception:  # the model's own code runs here, and may read values
        return None
