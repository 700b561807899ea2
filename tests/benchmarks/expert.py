"""The stack that an experienced engineer writes without any search, in plain PyTorch and for any workload.

Training gets bfloat16 autocast, inference bfloat16 weights; images are channels-last; model and loss are compiled as
one; the optimizer is fused where its class can be; the whole step is one CUDA graph; loaders get a worker per core,
pinned memory, and copies that do not block. Batch sizes, data and training stay as they are. On a machine without a
GPU the same code runs without CUDA graphs.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from script import Script, loss_of, on, output_of
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, RandomSampler

Loop = tuple[Callable[[Any], Any], Any]  # a step, and the data of its loop: one batch or a loader

PREFETCHED = 4
STEPS_BEFORE_CAPTURE = 3
_LAYOUTS = {4: (nn.Conv2d, torch.channels_last), 5: (nn.Conv3d, torch.channels_last_3d)}


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices within the stack. ``half`` is bfloat16; without it products run in TensorFloat-32.

    ``compile_mode`` is empty for a loop that is not compiled.
    """

    half: bool = True
    compile_mode: str = "default"
    graph: bool = True
    cudnn_benchmark: bool = False

    def weaker(self) -> tuple[Choices, ...]:
        """The stacks to fall back to, in turn: no graph, then no compilation, then neither."""
        return replace(self, graph=False), replace(self, compile_mode=""), replace(self, compile_mode="", graph=False)

    def __str__(self) -> str:
        parts = [
            "bfloat16" if self.half else "TensorFloat-32",
            f"compiled ({self.compile_mode})" if self.compile_mode else "not compiled",
            "one CUDA graph" if self.graph else "no CUDA graph",
        ]
        return ", ".join(parts + ["cudnn.benchmark"] * self.cudnn_benchmark)


def write_stack(script: Script, choices: Choices) -> Loop:
    """The loop of a script with the whole stack."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = choices.cudnn_benchmark
    loaded = isinstance(script.data, DataLoader)
    data = fed_by_workers(script.data, script.device) if loaded else script.data
    example = on(script.device, next(iter(data)) if loaded else data)
    place = _placement(script, choices, example)
    step = (_training_step if script.trains else _inference_step)(script, choices)
    if choices.graph and script.device.type == "cuda":
        run = _captured(step, place(example))
    else:
        run = lambda batch: step(place(batch))  # noqa: E731 - the two are one thing
    return lambda batch: run(on(script.device, batch, non_blocking=True)), data


def fed_by_workers(loader: DataLoader[Any], device: torch.device) -> DataLoader[Any]:
    """The loader with a worker per core that is kept alive, and pinned memory."""
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        shuffle=isinstance(loader.sampler, RandomSampler),
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last,
        num_workers=len(os.sched_getaffinity(0)),
        pin_memory=device.type == "cuda",
        persistent_workers=True,
        prefetch_factor=PREFETCHED,
    )


def fast_optimizer(script: Script) -> torch.optim.Optimizer:
    """The script's optimizer, fused where its class and the parameters can be, and ready for a CUDA graph."""
    written = script.make_optimizer(script.model.parameters())
    accepted = inspect.signature(type(written)).parameters
    how: dict[str, Any] = {}
    parameters = [parameter for group in written.param_groups for parameter in group["params"]]
    fusable = script.device.type == "cpu" or not isinstance(written, torch.optim.Adagrad)
    if "fused" in accepted and fusable and all(parameter.is_floating_point() for parameter in parameters):
        how["fused"] = True
    if "capturable" in accepted and script.device.type == "cuda":
        how["capturable"] = True
    options = {name: value for name, value in written.defaults.items() if name in accepted and name != "foreach"}
    groups = [
        {name: value for name, value in group.items() if name not in ("foreach", "fused", "capturable")}
        for group in written.param_groups
    ]
    return type(written)(groups, **{**options, **how})


def _placement(script: Script, choices: Choices, example: Any) -> Callable[[Any], Any]:
    """Bring model and batches into the layout and the type of the stack; return the function for batches."""
    modules, ranks = list(script.model.modules()), {leaf.ndim for leaf in tree_leaves(example)}
    layouts = {
        rank: layout
        for rank, (kind, layout) in _LAYOUTS.items()
        if rank in ranks and any(isinstance(module, kind) for module in modules)
    }
    for layout in layouts.values():
        script.model.to(memory_format=layout)
    half = choices.half and not script.trains
    if half:
        script.model.to(torch.bfloat16)

    def placed(tensor: Tensor) -> Tensor:
        dtype = torch.bfloat16 if half and tensor.is_floating_point() else tensor.dtype
        return tensor.to(dtype, memory_format=layouts.get(tensor.ndim, torch.preserve_format))

    return lambda batch: tree_map(placed, batch)


def _training_step(script: Script, choices: Choices) -> Callable[[Any], Tensor]:
    optimizer, plain_loss = fast_optimizer(script), loss_of(script)

    def loss_in_half(batch: Any) -> Tensor:
        with torch.autocast(script.device.type, torch.bfloat16, enabled=choices.half):
            return plain_loss(batch)

    loss_function = _compiled(loss_in_half, choices)

    def step(batch: Any) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _inference_step(script: Script, choices: Choices) -> Callable[[Any], Any]:
    forward = _compiled(output_of(script), choices)

    @torch.no_grad()
    def step(batch: Any) -> Any:
        return forward(batch)

    return step


def _compiled(function: Callable[[Any], Any], choices: Choices) -> Callable[[Any], Any]:
    return torch.compile(function, mode=choices.compile_mode) if choices.compile_mode else function


def _captured(step: Callable[[Any], Any], example: Any) -> Callable[[Any], Any]:
    """The step as one CUDA graph: a batch is copied to where the graph reads, and the graph is replayed."""
    static = tree_map(torch.clone, example)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(STEPS_BEFORE_CAPTURE):
            step(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # a loader's thread may pin memory meanwhile
        result = step(static)
    places = tree_leaves(static)

    def replay(batch: Any) -> Any:
        for place, tensor in zip(places, tree_leaves(batch), strict=True):
            place.copy_(tensor, non_blocking=True)
        graph.replay()
        return result

    return replay
