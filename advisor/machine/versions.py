"""The versions that decide speeds, without importing PyTorch."""

import platform
import re
from importlib import metadata, util
from pathlib import Path

from advisor.machine.hardware import inspect_hardware


def versions_line() -> str:
    """Python, PyTorch with the CUDA that it was built for, and the GPU's driver, in one line."""
    drivers = {gpu.driver_version for gpu in inspect_hardware().gpus}
    driver = f"driver {', '.join(sorted(drivers))}" if drivers else "no GPU"
    return f"Python {platform.python_version()}, {_torch()}, {driver}"


def _torch() -> str:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "no torch"
    spec = util.find_spec("torch")  # finds its folder, and runs none of it
    built = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    text = built.read_text(encoding="utf-8") if built and built.exists() else ""
    cuda = re.search(r"^cuda\b[^=]*= '([\d.]+)'", text, re.MULTILINE)
    return f"torch {version} for {f'CUDA {cuda[1]}' if cuda else 'the CPU'}"
