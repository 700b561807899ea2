"""Models inside the wrappers that PyTorch and frameworks put around them."""

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside a wrapper for several GPUs; else the model itself."""
    inner: torch.nn.Module = model.module if isinstance(model, DataParallel | DistributedDataParallel) else model
    return inner


def as_prepared(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside all wrappers that a loop may put around it: of torch.compile, several GPUs, and Fabric."""
    inner = unwrapped(getattr(model, "_orig_mod", model))
    inner = getattr(inner, "_original_module", inner)  # of Fabric's wrapper
    return model if inner is model else as_prepared(inner)
