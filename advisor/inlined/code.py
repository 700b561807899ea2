"""A recipe's code for people: the source of functions in ``inlined/``, and a call of one of them."""

import ast
from importlib import import_module
from importlib.resources import files
from typing import Any


def names_in(module: str, room: str = "inlined") -> dict[str, Any]:
    """The functions of a module, for a process that applies a setting. This imports torch."""
    return vars(import_module(f"advisor.{room}.{module}"))


def code_of(module: str, call: str) -> str:
    """The functions of a module in ``advisor/inlined/`` and a call of one, as Python code without this package.

    The file is read, not imported: the app's process never imports torch.
    """
    text = files("advisor").joinpath("inlined", f"{module}.py").read_text(encoding="utf-8")
    first = ast.parse(text).body[1]  # after the docstring
    functions = "".join(text.splitlines(keepends=True)[first.lineno - 1 :]).strip()
    return f"{functions}\n\n\n{call.strip()}\n"
