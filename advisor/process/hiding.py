"""Libraries that are not what they should be: hidden by a file of the user's, missing, broken, or too old."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

_LIBRARIES = {"torch": "PyTorch", "torchvision": "torchvision", "numpy": "NumPy"}


def hidden_library(folders: Iterable[str | Path]) -> str:
    """Name a file in these folders that hides a library: ``/x/torch.py hides PyTorch``; empty without one.

    Ask when an import failed: most such files do no harm.
    """
    for folder in folders:
        for name in (*_LIBRARIES, *sorted(sys.stdlib_module_names)):
            for path in (Path(folder, f"{name}.py"), Path(folder, name, "__init__.py")):
                if _is_users(path):
                    return f"{path} hides {_LIBRARIES.get(name, f'the module {name} of Python')}"
    return ""


def unfit_library(error: Exception) -> str:
    """Name the library that cannot be imported, or lacks what perf-advisor uses of it; empty for other errors."""
    module = getattr(error, "name", None) if isinstance(error, ImportError) else None
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        module = error.obj.__name__
    top = (module or "").partition(".")[0]
    return "" if top == "advisor" else top


def _is_users(path: Path) -> bool:
    """Whether the file is there, and is not the library itself."""
    try:
        return path.is_file() and not path.resolve().is_relative_to(Path(sys.prefix).resolve())
    except (OSError, ValueError):
        return False
