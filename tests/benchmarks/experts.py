"""What experts write for each workload: the one stack, and a better one by hand where such a one is known."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from catalogue import Workload
from expert import Choices, Loop, write_stack
from script import Script
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torchvision.transforms import v2

USUAL = Choices()
BENCHMARKED = Choices(cudnn_benchmark=True)
AUTOTUNED = Choices(half=False, compile_mode="max-autotune-no-cudagraphs")
STACK, BY_HAND = "expert", "expert by hand"

Edit = Callable[[Script], Script]  # changes a script by hand before the stack is written


def unchanged(script: Script) -> Script:
    """the stack with other choices"""
    return script


def without_biases(script: Script) -> Script:
    """convolutions before batch norms lose their biases, which the norms take away anyway"""
    for convolution, *_norm in script.model[:-1]:
        convolution.bias = None
    return script


def scaled_on_device(script: Script) -> Script:
    """images are copied as bytes and scaled on the GPU"""
    dataset = script.data.dataset
    crop, flip, _to_float, normalize = dataset.transform.transforms
    dataset.transform = v2.Compose([crop, flip])
    scale = Scale(normalize.mean, normalize.std).to(script.device)
    return replace(script, model=nn.Sequential(scale, script.model))


def folded(script: Script) -> Script:
    """batch norms are folded into the convolutions before them"""
    return replace(script, model=fuse(script.model))


class Scale(nn.Module):
    """From bytes to normalised floats."""

    def __init__(self, mean: Any, deviation: Any) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images.float() / 255 - self.mean) / self.deviation


EDITS: dict[str, tuple[Edit, Choices]] = {
    "resnet50": (unchanged, BENCHMARKED),
    "small_resnet18": (unchanged, BENCHMARKED),
    "autoencoder": (without_biases, BENCHMARKED),
    "mlp12": (unchanged, AUTOTUNED),
    "jpeg": (scaled_on_device, BENCHMARKED),
    "jpeg128": (scaled_on_device, USUAL),
    "infer1": (folded, USUAL),
    "infer128": (folded, BENCHMARKED),
    "mobilenet_infer1": (folded, USUAL),
    "mobilenet_infer256": (folded, USUAL),
}


def experts_of(workload: Workload) -> dict[str, tuple[Edit, Choices]]:
    """The expert's variants of a workload, by name: the changes by hand, and the choices of the stack."""
    by_hand = {BY_HAND: EDITS[workload.name]} if workload.name in EDITS else {}
    return {STACK: (unchanged, USUAL), **by_hand}


def described(workload: Workload, name: str, choices: Choices) -> str:
    """A variant in words."""
    edit, _ = experts_of(workload)[name]
    return str(choices) if edit is unchanged else f"{choices}; {edit.__doc__}"


def write(workload: Workload, name: str, script: Script, choices: Choices) -> Loop:
    """The loop of a variant."""
    edit, _ = experts_of(workload)[name]
    return write_stack(edit(script), choices)
