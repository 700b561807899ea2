"""Tells whose code a function, a class or a module is: the user's, Python's, PyTorch's or another package's."""

import dis
import enum
import functools
import pathlib
import sys
import types
import typing

import torch

# Folders of installed packages; PyTorch may lie elsewhere.
PACKAGES = ("site-packages", "dist-packages")
# Packages whose objects hold nothing that code changes between steps; ``contextlib`` makes new ones for each use.
STATELESS = ("torch", "numpy", "builtins", "contextlib")
# Of PyTorch's own classes, beside modules, those with state that a step reads and changes.
TORCH_STATE = ("torch.optim", "torch.amp", "torch.cuda.amp", "torch.distributions", "torch.nn")


@functools.cache
def folder_of(module: types.ModuleType) -> str:
    """The folder that a module's file is in."""
    return str(pathlib.Path(module.__file__ or "").parent)


def is_in_package(file: str) -> bool:
    """Whether a file belongs to an installed package, or to Python."""
    return file.startswith("<frozen") or any(part in file for part in (*PACKAGES, folder_of(torch), folder_of(dis)))


def file_of(call: typing.Any) -> str:
    """The file with the code of a function that is called; empty where there is none, or it is PyTorch's."""
    while isinstance(call, (functools.partial, types.MethodType)):
        call = call.func if isinstance(call, functools.partial) else call.__func__
    code = getattr(call, "__code__", None)
    file = code.co_filename if isinstance(code, types.CodeType) else ""
    return "" if folder_of(torch) in file else file


def is_installed(call: typing.Any) -> bool:
    """Whether the code of a function or of an object that is called belongs to an installed package."""
    function = getattr(call, "__func__", call)
    if isinstance(call, functools.partial):
        return is_installed(call.func)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is None or any(place in code.co_filename for place in (*PACKAGES, folder_of(torch)))


def is_of_package(one: typing.Any) -> bool:
    """Whether a class or a module belongs to an installed package or to Python, and not to the user."""
    home = one if isinstance(one, types.ModuleType) else sys.modules.get(one.__module__)
    place = getattr(home, "__file__", None) or next(iter(getattr(home, "__path__", ())), None)
    return is_of_library(one) if place is None else is_in_package(place)


def is_of_library(one: typing.Any) -> bool:
    """Whether a function, a class or a module is one of Python's, NumPy's or PyTorch's own."""
    package = package_of(one)
    return package in ("torch", "numpy") or package in sys.stdlib_module_names


def is_of_other_package(one: typing.Any) -> bool:
    """Whether a thing is a function of an installed package that is neither PyTorch nor NumPy."""
    return isinstance(one, types.FunctionType) and is_installed(one) and not is_of_library(one)


def package_of(one: typing.Any) -> str:
    """The name of the package or the module that a function, a class or a module belongs to."""
    name = one.__name__ if isinstance(one, types.ModuleType) else getattr(one, "__module__", "")
    return str(name).partition(".")[0]


def inherits_from_package(kind: type) -> bool:
    """Whether code of an installed package, beside that of any module, may use the attributes of a class's objects."""
    return any(package_of(base) not in sys.stdlib_module_names for base in packages_of(kind))


def packages_of(kind: type) -> list[type]:
    """The classes of packages that a class is or inherits from, but for those of all objects and modules."""
    return [base for base in kind.__mro__ if base not in (object, torch.nn.Module) and is_of_package(base)]


def is_without_state(kind: type) -> bool:
    """Whether objects of a class are not looked into: they have no state, or only what no step changes."""
    if issubclass(kind, (torch.nn.Module, torch.optim.Optimizer)) or kind.__module__.startswith(TORCH_STATE):
        return False
    return issubclass(kind, enum.Enum) or package_of(kind) in STATELESS
