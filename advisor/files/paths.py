"""Checks of paths as a person may write them (with a NUL, too long), and whether a file is the user's own code."""

import os
import stat
from pathlib import Path

from advisor.errors import TargetError

DEMO = "demo"  # the target that stands for the model that we bring

PACKAGE = Path(__file__).parents[1]  # the folder of this package: other files are the user's
INSTALLED = ("/site-packages/", "/dist-packages/")  # the folders that packages are installed in
_LIBRARY = Path(os.__file__).parent
_PYTHONS = ("<frozen ", f"{_LIBRARY}/", f"{_LIBRARY.resolve()}/")

# Endings of files with weights, or with models of other programs: PyTorch cannot run them by itself.
_NO_MODELS = (".onnx", ".safetensors", ".ckpt", ".bin", ".h5", ".keras", ".tflite", ".gguf")
_NO_TARGETS = (".yaml", ".yml", ".toml", ".json")
EXPORTED = (".pt2", ".pt", ".pth", ".ts", ".torchscript", ".jit")  # endings of exported models, which are targets


# These return False for an impossible name. The methods of Path raise OSError for a name that is too long.
is_file, is_folder, exists = os.path.isfile, os.path.isdir, os.path.exists


def content_of(path: str | Path, most_bytes: int = 16 * 2**20) -> bytes:
    """The content of a file. Raises OSError for a larger file, and for a pipe or a device, which may never end."""
    if not stat.S_ISREG((found := Path(path).stat()).st_mode) and not Path(path).samefile(os.devnull):
        raise OSError("it is a folder, a pipe or a device")
    if found.st_size > most_bytes:
        raise OSError(f"it is larger than {most_bytes / 2**20:.0f} MiB")
    return Path(path).read_bytes()


def is_pythons_own(file: str) -> bool:
    """Whether a file of code is a module of Python's own library."""
    return file.startswith(_PYTHONS) and not any(part in file for part in INSTALLED)


def is_library(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to perf-advisor. Other files are the user's."""
    return is_pythons_own(file) or any(part in file for part in (*INSTALLED, f"{PACKAGE}{os.sep}"))


def check_target(target: str, directory: str | Path) -> None:
    """Raise TargetError if a target names a file that is missing, a folder, or neither a model nor Python code.

    A target that names a module, a model of a library, or the demo passes.
    """
    if target == DEMO:  # there may be a folder of that name
        return
    before, colon, _ = target.rpartition(":")
    name = before if colon else target
    path, suffix = Path(directory, name), Path(name).suffix.lower()
    problem = hint = ""
    if suffix == ".ipynb":
        problem = f"{name} is a notebook."
        hint = "In it, type `advisor.tune(build)`; or `jupyter nbconvert --to script` it, and give the .py file."
    elif "://" in target:
        problem = f"{target} is an address, and nothing is downloaded."
        hint = "Name a file of yours, as in train.py or mymodel.py:build, or a model by its name, as in hf:gpt2."
    elif not colon and name and is_folder(path) and ("/" in name or not exists(path / "__init__.py")):
        script = "__main__.py" if is_file(path / "__main__.py") else "train.py"
        problem = f"{name} is a folder."
        hint = f"Name a file in it, as in {Path(name, script)}, or {Path(name, 'model.py')}:build."
    elif not colon and suffix in _NO_TARGETS:
        problem = f"{name} is a file of settings, not of a model."
        hint = (
            f"Name what they are for: `perf-advisor mymodel:build --config {name}` writes tuned settings into your "
            f"config, and `perf-advisor check {name} mymodel:build` measures tuned ones again."
        )
    elif suffix in _NO_MODELS and is_file(path):
        problem = f"{name} holds weights, or a model of another program."
        hint = (
            "Write a build() that makes the PyTorch model and, if it can, loads these weights. Then name it: "
            "mymodel.py:build."
        )
    elif ("/" in name or name.endswith((".py", *EXPORTED))) and not is_file(path):
        problem, hint = f"there is no file {name}.", "Check the path; it is relative to the working directory."
    if problem:
        raise TargetError(problem, hint)
