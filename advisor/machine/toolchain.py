"""Compilers that PyTorch's compiler calls, and shared libraries that can be preloaded. Never imports torch."""

import ctypes.util
import os
import shutil
import sys
from functools import cache
from pathlib import Path

from advisor.records import Facts, Skip

# Folders of libraries in addition to those that the loader searches.
_FOLDERS = (f"{sys.prefix}/lib", "/usr/local/lib", "/opt/intel/oneapi/compiler/latest/lib")


def cannot_compile(facts: Facts) -> Skip | None:
    """The reason that the model cannot be compiled for this device. On a GPU only Triton's launchers are in C."""
    if facts.workload.torchscript:
        return Skip("the model is TorchScript, which torch.compile does not accept: give the module it was made from")
    variable, found = ("CC", ("gcc", "clang")) if facts.on_cuda else ("CXX", ("g++",))
    if named := os.environ.get(variable):
        return None if shutil.which(named) else Skip(f"the compiler that ${variable} names, {named}, is not found")
    if any(map(shutil.which, found)):
        return None
    return Skip(f"torch.compile needs {' or '.join(found)}: install that, or name another compiler in ${variable}")


@cache
def shared_library(*names: str) -> str | None:
    """The path of the first of these libraries that is installed; its file name if only the loader finds it."""
    for name in names:
        for folder in _FOLDERS:
            if found := sorted(Path(folder).glob(f"lib{name}.so*")):
                return str(found[0])
        if known := ctypes.util.find_library(name):
            return known
    return None
