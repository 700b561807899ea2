"""Models whose structure a recipe may change, the ways in which it does, and what an inspection sees in them."""

import operator

import pytest
import torch
import torchvision
from exported_module import module_of
from proposals import CATALOG
from torch import nn
from torch.nn import functional

from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.trial.inspection import inspect_loop
from advisor.workloads.loop import Loop


def applied(recipe_id, value, model, optimizer=None, data=None):
    mode = Mode.INFER if optimizer is None else Mode.TRAIN
    components = Components(model, optimizer, data, StepPlan(mode=mode, device=str(device_of(model))))
    CATALOG[recipe_id].apply(components, value)
    return components.model


def device_of(model):
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def coded(recipe_id, value, model, optimizer=None, data=None):
    namespace = {"torch": torch, "model": model, "optimizer": optimizer, "loader": data, "device": device_of(model)}
    exec(compile(CATALOG[recipe_id].code(value), recipe_id, "exec"), namespace)
    return namespace["model"]


def exported(recipe_id, value, model, optimizer=None, data=None):
    mode = Mode.INFER if optimizer is None else Mode.TRAIN
    return module_of(CATALOG, {CATALOG[recipe_id].key: value}, mode).prepare(model, optimizer, data)[0]


every_way = pytest.mark.parametrize("way", [applied, coded], ids=["apply", "code"])


def scrambled(model):
    """Set weights, biases and running statistics to values that are neither zero nor one."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            drawn = torch.rand(tensor.shape, generator=generator)
            tensor.data.copy_(drawn + 0.5 if "running_var" in name or tensor.dim() == 1 else (drawn - 0.5) * 0.3)
    return model


def unread(model):
    """The names of parameters that their modules read as None."""
    return {name for name, _ in model.named_parameters() if operator.attrgetter(name)(model) is None}


class ConvNorm(nn.Sequential):
    def __init__(self, inputs, outputs, kernel=3):
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        )


class UNet(nn.Module):
    """Two levels with skip connections; convolutions with biases, one of them transposed."""

    def __init__(self):
        super().__init__()
        self.first, self.down, self.join = ConvNorm(3, 6), ConvNorm(6, 8), ConvNorm(12, 6)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2)
        self.up_norm = nn.BatchNorm2d(6)
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, images):
        high = self.first(images)
        low = self.down(functional.max_pool2d(high, 2))
        return self.head(self.join(torch.cat([high, self.up_norm(self.up(low))], 1)))


def biased_resnet():
    model = torchvision.models.resnet18(num_classes=4)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.bias = nn.Parameter(torch.zeros(module.out_channels))
    return model


MODELS = {
    "resnet18": (biased_resnet, (2, 3, 32, 32), 20, 20),
    "U-Net": (UNet, (2, 3, 8, 8), 4, 3),
    "1-D": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU()), (4, 3, 9), 1, 1),
    "3-D": (lambda: nn.Sequential(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4)), (2, 3, 4, 4, 4), 1, 1),
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), (5, 3), 0, 1),
}
each_model = pytest.mark.parametrize(("way", "name"), [*((applied, name) for name in MODELS), (coded, "U-Net")])


def made(name):
    build, shape, biases, folds = MODELS[name]
    torch.manual_seed(0)
    return scrambled(build()).double(), torch.randn(shape, dtype=torch.float64), biases, folds


class Pair(nn.Module):
    """A convolution with a bias and a norm; subclasses use them in ways that forbid a change."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(self.conv(x))


class Branch(Pair):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


class SharedConv(Pair):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.conv(x * 2)


class SharedNorm(Pair):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.norm(x)


class DataDependent(Pair):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) if x.sum() > 0 else y


def inspected(model, images, mode=Mode.TRAIN):
    model.train(mode is Mode.TRAIN)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if mode is Mode.TRAIN else None
    data = (images, torch.zeros(len(images)))
    loss = functional.mse_loss if mode is Mode.TRAIN else None
    return inspect_loop(Loop(model, data, loss, optimizer, mode, batch_size=len(images)), torch.device("cpu"), [data])
