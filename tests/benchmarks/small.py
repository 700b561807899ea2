"""A workload of each kind at a size for a machine without a GPU: to try the benchmark out, not to measure anything."""

import importlib.util
import sys
from pathlib import Path

FOLDERS = (Path(__file__).parents[1] / "gpu" / "workloads", Path(__file__).parent / "workloads")


def module_of(file):
    """A file as a module that compilers can find again."""
    spec = importlib.util.spec_from_file_location(f"workload_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _with(name, attribute="build", **sizes):
    """The ``build`` of a workload file, at other sizes."""

    def build():
        (file,) = (folder / f"{name}.py" for folder in FOLDERS if (folder / f"{name}.py").exists())
        module = module_of(file)
        vars(module).update(sizes)
        return getattr(module, attribute)()

    return build


def resnet50():
    model, (images, labels), *rest = _with("resnet50", BATCH=2)()
    return model, (images[..., :32, :32].contiguous(), labels), *rest


_BERT = {"WIDTH": 32, "HEADS": 2, "LAYERS": 1, "LENGTH": 16, "VOCABULARY": 101, "BATCH": 2}

small_resnet18 = _with("small_resnet18", BATCH=4)
r3d = _with("r3d", FRAMES=4, SIDE=32, BATCH=2)
bert = _with("bert", **_BERT)
bert_serve = _with("bert", "serve", **_BERT)
llama = _with("llama", WIDTH=32, HEADS=2, LAYERS=1, LENGTH=16, VOCABULARY=101, BATCH=2)
lstm = _with("lstm", WIDTH=32, LAYERS=1, VOCABULARY=101, LENGTH=8, BATCH=2)
autoencoder = _with("autoencoder", WIDTHS=(3, 8, 16), BATCH=2, SIZE=32)
jpeg = _with("jpeg", IMAGES=8, SIDE=64, BATCH=4, CLASSES=10)
jpeg_mobile = _with("jpeg", "mobile", MOBILE_IMAGES=8, SIDE=64, CROP=32, MOBILE_BATCH=4, CLASSES=10)
mlp12 = _with("mlp12", WIDTH=32, BLOCKS=2, BATCH=16)
physics = _with("physics", WIDTH=8, LAYERS=1, POINTS=16, STARTS=4)
