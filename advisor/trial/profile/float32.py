"""The precision of float32 products: read and set by whichever of PyTorch's two interfaces the version has.

From 2.9 on the older one raises an error once a script has used the newer one, so that is asked first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def products_in_tf32() -> bool:
    """Whether matrix products of float32 run in TF32 on CUDA."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return torch.get_float32_matmul_precision() != "highest" if precision is None else precision == "tf32"


def convolutions_in_tf32() -> bool:
    """Whether convolutions of float32 run in TF32 on CUDA; PyTorch's default."""
    precision = getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)
    return torch.backends.cudnn.allow_tf32 if precision is None else precision == "tf32"


@contextlib.contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Matrix products of float32 in TF32, or in full float32 whatever the process's present setting is."""
    backends = [backend for backend in (torch.backends.cuda.matmul, _mkldnn()) if hasattr(backend, "fp32_precision")]
    if not backends:
        with _legacy(tf32=tf32):
            yield
        return
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "tf32" if tf32 and backend is torch.backends.cuda.matmul else "ieee"
    try:
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


@contextlib.contextmanager
def _legacy(*, tf32: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _mkldnn() -> Any:
    return getattr(torch.backends.mkldnn, "matmul", None)
