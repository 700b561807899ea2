"""Functions that trials run and exported files contain word for word, so that both do the same.

The modules here import torch when they are imported, so others import them inside functions. They use no other module
of this package but each other. They name everything as ``torch.x.y`` or import names from modules: an exported file has
``torch`` imported already, and contains most of them inside a function. What a DataLoader's workers need stands at its
top level.
"""

import ast
import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

# Exported code has the plan's values in the place of the plan.
_NOT_EXPORTED = "plan"
FREEZING = """\
from torch._inductor import config as inductor_config

inductor_config.freezing = True  # parameters become constants: do not change them afterwards
"""


def module_text(name: str) -> str:
    """The text of a module of this package."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")


def modules_in_order(names: Iterable[str]) -> list[str]:
    """These modules and those of this package that they import, each behind what it imports."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in found or name == _NOT_EXPORTED:
            return
        for other in _imported_from_here(name):
            visit(other)
        found[name] = None

    for name in names:
        visit(name)
    return list(found)


@functools.cache
def _imported_from_here(name: str) -> list[str]:
    imports = [node.module or "" for node in ast.parse(module_text(name)).body if isinstance(node, ast.ImportFrom)]
    return [module.removeprefix(f"{__name__}.") for module in imports if module.startswith(f"{__name__}.")]


def source(*names: str) -> str:
    """The text of these modules, and of those that they import, as one piece for exported code.

    It has no docstrings of modules, and torch is imported already.
    """
    texts = [module_text(name) for name in modules_in_order(names)]
    imports = sorted({line for text in texts for line in _imports(text)})
    head = "\n".join(imports) + "\n\n\n" if imports else ""
    return head + "\n\n\n".join(_body(text) for text in texts) + "\n"


@functools.cache
def _imports(text: str) -> list[str]:
    return [ast.unparse(node) for node in ast.parse(text).body if _is_needed(node)]


def _is_needed(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return not (node.module or "").startswith("advisor")
    return isinstance(node, ast.Import) and node.names[0].name != "torch"


@functools.cache
def _body(text: str) -> str:
    """From the first statement that is neither the docstring nor an import."""
    first = next(node for node in ast.parse(text).body if not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom))
    return "\n".join(text.splitlines()[first.lineno - 1 :]).strip("\n")


_COMPILED_LOSS = """\
def compiled_loss(inputs, target):
    return loss_fn(model(inputs), target)
"""


def compile_options(mode: str, dynamic: str | bool, extras: Mapping[str, str | bool] | None = None) -> str:
    """The keyword arguments of ``torch.compile``, as text. ``extras`` are options beside those of the mode."""
    sizes = "" if dynamic == "auto" else f", dynamic={dynamic}"
    if not extras:
        return f'mode="{mode}"{sizes}'
    # torch.compile takes a mode or options, not both.
    of_mode = "" if mode == "default" else f'**torch._inductor.list_mode_options("{mode}"), '
    options = ", ".join(
        f'"{name}": {json.dumps(value) if isinstance(value, str) else value}' for name, value in extras.items()
    )
    return f"options={{{of_mode}{options}}}{sizes}"


def compile_source(
    *,
    mode: str = "default",
    scope: str = "model",
    dynamic: str | bool = "auto",
    extras: Mapping[str, str | bool] | None = None,
) -> str:
    """Python that compiles as the runtime does: the model, its repeated blocks in place, or it and the loss as one."""
    options = compile_options(mode, dynamic, extras)
    if scope == "with_loss":
        return f"@torch.compile({options})\n{_COMPILED_LOSS}"
    if scope == "regional":
        code = source("regions")
        return f"{code}\n\nif repeated_blocks(model):\n    compile_blocks(model, {options})\n"
    return f"{source('compiled_module')}\n\ncompile_in_place(model, {options})\n"
