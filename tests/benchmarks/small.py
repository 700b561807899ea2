"""The workloads at sizes for a machine without a GPU: to try the benchmark out, not to measure anything."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

WORKLOADS = Path(__file__).parents[1] / "gpu" / "workloads"


def module_of(file):
    """A file as a module that compilers can find again."""
    spec = importlib.util.spec_from_file_location(f"workload_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _with(name, **sizes):
    """The ``build`` of a workload file, at other sizes."""

    def build():
        module = module_of(WORKLOADS / f"{name}.py")
        vars(module).update(sizes)
        return module.build()

    return build


def resnet50():
    model, (images, labels), *rest = _with("resnet50", BATCH=2)()
    return model, (images[..., :64, :64].contiguous(), labels), *rest


small_resnet18 = _with("small_resnet18", BATCH=4)
encoder = _with("encoder", WIDTH=64, HEADS=4, LAYERS=1, LENGTH=16, BATCH=2)
gpt2 = _with("gpt2", WIDTH=64, HEADS=4, BLOCKS=1, VOCABULARY=101, LENGTH=16, BATCH=2)
mlp12 = _with("mlp12", WIDTH=32, BLOCKS=2, BATCH=16)
recommender = _with("recommender", TABLES=3, ROWS=100, WIDTH=8, BATCH=16)
autoencoder = _with("autoencoder", WIDTHS=(3, 8, 16), BATCH=2, SIZE=32)
jpeg = _with("jpeg", IMAGES=16, SIDE=64, BATCH=4, CLASSES=10)
