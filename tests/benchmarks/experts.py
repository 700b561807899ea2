"""What an experienced engineer would write for each workload by hand: batch sizes, data and training stay as they are.

The first function of a workload in ``EXPERTS`` is the expert's; the others are what the expert might try besides, and
are timed with ``--all-experts``. On a machine without a GPU the same code runs without CUDA graphs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from scripts import Script, on
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from variants import Loop

CHANNELS_LAST = torch.channels_last


def resnet50(script: Script) -> Loop:
    """channels-last, bfloat16, model and loss compiled, cudnn.benchmark, fused SGD, the step in one CUDA graph"""
    return _convolutional(script, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True), benchmark=True)


def resnet50_without_benchmark(script: Script) -> Loop:
    """channels-last, bfloat16, model and loss compiled, fused SGD, the step in one CUDA graph"""
    return _convolutional(script, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True), benchmark=False)


def small_resnet18(script: Script) -> Loop:
    """channels-last, bfloat16, model and loss compiled, cudnn.benchmark, fused SGD, the step in one CUDA graph"""

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)

    return _convolutional(script, sgd, benchmark=True)


def autoencoder(script: Script) -> Loop:
    """channels-last, bfloat16, no biases before batch norms, model and loss compiled, cudnn.benchmark, fused Adam, the
    step in one CUDA graph"""
    for convolution, *_norm in script.model[:-1]:
        convolution.bias = None
    return _convolutional(script, lambda p: _adam(p, 1e-3, script.device), benchmark=True)


def encoder(script: Script) -> Loop:
    """bfloat16, model and loss compiled, fused AdamW, the step in one CUDA graph"""
    optimizer = _adamw(script.model.parameters(), 1e-4, script.device)
    return _captured(_train_step(_compiled_loss(script, torch.bfloat16), optimizer), script.data), script.data


def gpt2(script: Script) -> Loop:
    """bfloat16, model and loss compiled, fused AdamW, the step in one CUDA graph"""
    optimizer = _adamw(script.model.parameters(), 3e-4, script.device)
    return _captured(_train_step(_compiled_loss(script, torch.bfloat16), optimizer), script.data), script.data


def gpt2_without_graph(script: Script) -> Loop:
    """bfloat16, model and loss compiled, fused AdamW"""
    optimizer = _adamw(script.model.parameters(), 3e-4, script.device)
    return _train_step(_compiled_loss(script, torch.bfloat16), optimizer), script.data


def mlp12(script: Script) -> Loop:
    """TensorFloat-32, model and loss compiled with max-autotune, fused Adam, the step in one CUDA graph"""
    return _mlp(script, "max-autotune-no-cudagraphs")


def mlp12_default(script: Script) -> Loop:
    """TensorFloat-32, model and loss compiled, fused Adam, the step in one CUDA graph"""
    return _mlp(script, "default")


def recommender(script: Script) -> Loop:
    """bfloat16, model and loss compiled, fused Adam, the step in one CUDA graph"""
    return _recommender(script, torch.bfloat16)


def recommender_tf32(script: Script) -> Loop:
    """TensorFloat-32, model and loss compiled, fused Adam, the step in one CUDA graph"""
    return _recommender(script, None)


def jpeg(script: Script) -> Loop:
    """a worker per core kept alive, pinned memory, scaling on the GPU, channels-last, bfloat16, model and loss
    compiled, cudnn.benchmark, fused SGD, the step in one CUDA graph"""
    torch.backends.cudnn.benchmark = True
    device, dataset = script.device, script.data.dataset
    crop, flip, _to_float, normalize = dataset.transform.transforms
    dataset.transform = v2.Compose([crop, flip])  # what is cropped and copied is bytes
    loader = DataLoader(
        dataset,
        batch_size=script.data.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=len(os.sched_getaffinity(0)),
        pin_memory=device.type == "cuda",
        persistent_workers=True,
        prefetch_factor=4,
    )
    mean, deviation = (
        torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (normalize.mean, normalize.std)
    )
    model = script.model.to(memory_format=CHANNELS_LAST)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)

    @torch.compile
    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        scaled = (images.to(memory_format=CHANNELS_LAST).float() / 255 - mean) / deviation
        with torch.autocast(device.type, torch.bfloat16):
            return script.loss(model(scaled), labels)

    step = _captured(_train_step(loss_of, optimizer), on(device, next(iter(loader))))
    return lambda batch: step(on(device, batch, non_blocking=True)), loader


def inference(script: Script) -> Loop:
    """batch norms folded, bfloat16 weights, channels-last, compiled, cudnn.benchmark, one CUDA graph"""
    return _inference(script, "default")


def inference_autotuned(script: Script) -> Loop:
    """batch norms folded, bfloat16 weights, channels-last, max-autotune, cudnn.benchmark, one CUDA graph"""
    return _inference(script, "max-autotune-no-cudagraphs")


EXPERTS: dict[str, tuple[Callable[[Script], Loop], ...]] = {
    "resnet50": (resnet50, resnet50_without_benchmark),
    "small_resnet18": (small_resnet18,),
    "encoder": (encoder,),
    "gpt2": (gpt2, gpt2_without_graph),
    "mlp12": (mlp12, mlp12_default),
    "recommender": (recommender, recommender_tf32),
    "autoencoder": (autoencoder,),
    "jpeg": (jpeg,),
    "infer1": (inference, inference_autotuned),
    "infer128": (inference, inference_autotuned),
}


def _convolutional(script: Script, make_optimizer: Callable[[Any], torch.optim.Optimizer], *, benchmark: bool) -> Loop:
    torch.backends.cudnn.benchmark = benchmark
    script.model.to(memory_format=CHANNELS_LAST)
    optimizer = make_optimizer(script.model.parameters())
    example = tuple(tensor.to(memory_format=CHANNELS_LAST) if tensor.ndim == 4 else tensor for tensor in script.data)
    return _captured(_train_step(_compiled_loss(script, torch.bfloat16), optimizer), example), script.data


def _mlp(script: Script, mode: str) -> Loop:
    optimizer = _adam(script.model.parameters(), 1e-3, script.device)
    return _captured(_train_step(_compiled_loss(script, None, mode), optimizer), script.data), script.data


def _recommender(script: Script, autocast: torch.dtype | None) -> Loop:
    optimizer = _adam(script.model.parameters(), 1e-3, script.device)
    return _captured(_train_step(_compiled_loss(script, autocast), optimizer), script.data), script.data


def _inference(script: Script, mode: str) -> Loop:
    torch.backends.cudnn.benchmark = True
    fold_norms(script.model)
    compiled = torch.compile(script.model.to(torch.bfloat16, memory_format=CHANNELS_LAST), mode=mode)
    example = tuple(images.to(torch.bfloat16, memory_format=CHANNELS_LAST) for images in script.data)

    @torch.no_grad()
    def infer(batch: Any) -> Tensor:
        return compiled(*(images.to(torch.bfloat16, memory_format=CHANNELS_LAST) for images in batch))

    return _captured(infer, example), script.data


def fold_norms(resnet: nn.Module) -> None:
    """Put the batch norms of a ResNet of torchvision's into the weights of the convolutions before them."""
    for module in list(resnet.modules()):
        for number in (1, 2, 3):
            if hasattr(module, f"bn{number}"):
                pair = (getattr(module, f"conv{number}"), getattr(module, f"bn{number}"))
                setattr(module, f"conv{number}", fuse_conv_bn_eval(*pair))
                setattr(module, f"bn{number}", nn.Identity())
        if getattr(module, "downsample", None) is not None:
            module.downsample = fuse_conv_bn_eval(*module.downsample)


def _adam(parameters: Any, rate: float, device: torch.device) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=rate, fused=True, capturable=device.type == "cuda")


def _adamw(parameters: Any, rate: float, device: torch.device) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, fused=True, capturable=device.type == "cuda")


def _compiled_loss(script: Script, autocast: torch.dtype | None, mode: str = "default") -> Callable[..., Tensor]:
    """Model and loss as one compiled function, which fuses the loss with the model's last layer."""
    torch.set_float32_matmul_precision("high")

    @torch.compile(mode=mode)
    def loss_of(inputs: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(script.device.type, autocast, enabled=autocast is not None):
            return script.loss(script.model(inputs), target)

    return loss_of


def _train_step(loss_of: Callable[..., Tensor], optimizer: torch.optim.Optimizer) -> Callable[[Any], Tensor]:
    def step(batch: Any) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _captured(step: Callable[[Any], Tensor], example: tuple[Tensor, ...]) -> Callable[[Any], Tensor]:
    """The step as one CUDA graph: a batch is copied to where the graph reads, and the graph is replayed."""
    if example[0].device.type != "cuda":
        return step
    static = tuple(tensor.clone() for tensor in example)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # a loader's thread may pin memory meanwhile
        result = step(static)

    def replay(batch: Any) -> Tensor:
        for place, tensor in zip(static, batch, strict=True):
            place.copy_(tensor, non_blocking=True)
        graph.replay()
        return result

    return replay
