"""Compilers that PyTorch's compiler calls, and shared libraries that can be preloaded. Nothing here imports torch."""

import ctypes.util
import os
import shutil
import sys
from functools import cache
from pathlib import Path

from advisor.records import Facts, Skip

# Folders of libraries besides those that the loader searches.
_FOLDERS = (f"{sys.prefix}/lib", "/usr/local/lib", "/opt/intel/oneapi/compiler/latest/lib")


def cannot_compile(facts: Facts) -> Skip | None:
    """The reason the model cannot be compiled, or None."""
    if facts.workload.torchscript:
        return Skip("the model is TorchScript, which torch.compile does not take: give the module it was made of")
    return missing_compiler(facts)


def missing_compiler(facts: Facts) -> Skip | None:
    """The reason nothing can be compiled for this device, or None."""
    return _no_triton(facts) if facts.on_cuda else _no_cpp_compiler()


def _no_triton(facts: Facts) -> Skip | None:
    """Triton compiles the kernels itself, and their launchers with a C compiler."""
    capability = facts.workload.capability
    if capability and capability < (7, 0):
        have = ".".join(map(str, capability))
        return Skip(f"compute capability {have} is too old for Triton's kernels (7.0 and later work)")
    if named := os.environ.get("CC"):
        return None if shutil.which(named) else Skip(f"the C compiler that $CC names, {named}, is not found")
    return None if _first_found("gcc", "clang") else Skip("torch.compile needs a C compiler: install gcc or clang")


def _no_cpp_compiler() -> Skip | None:
    """The CPU backend calls the compiler that $CXX names, or g++; it looks for no other."""
    if named := os.environ.get("CXX"):
        return None if shutil.which(named) else Skip(f"the C++ compiler that $CXX names, {named}, is not found")
    if shutil.which("g++"):
        return None
    if other := _first_found("clang++", "c++"):
        return Skip(f"torch.compile looks for g++, which is not installed; set CXX={other} to use that one")
    return Skip("torch.compile needs a C++ compiler on the CPU: install g++, or name another in $CXX")


def _first_found(*names: str) -> str | None:
    return next((name for name in names if shutil.which(name)), None)


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
