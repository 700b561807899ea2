"""Write the settings for one workload as a Python file of plain PyTorch."""

import ast
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from advisor.errors import UsageError
from advisor.figures.formatting import format_setting
from advisor.python.step import LINE, OF_DDP, TEMPLATE, StepText, WrittenFor, call
from advisor.recipe import Recipe, Stage
from advisor.recipe.catalog import Catalog
from advisor.records import Mode, Value
from advisor.version import __version__

# The arguments that a new DataLoader takes from the old one, besides the dataset and the arguments for sampling.
_KEPT = ("collate_fn", "worker_init_fn", "generator", "num_workers", "pin_memory")


def python_source(
    catalog: Catalog, settings: Mapping[str, Value], mode: Mode | str, workload: WrittenFor | None = None
) -> str:
    """Python source with ``prepare(model, optimizer, loader)`` and ``train_step``, ``infer_step`` or ``own_step``.

    Settings for another mode or device than the workload's are left out. Raises UsageError for settings that are
    unknown or cannot be combined.
    """
    catalog.check(settings)
    if conflict := catalog.conflict(settings):
        raise UsageError(f"these settings cannot be combined: {conflict}.", "Leave one of them out.")
    mode, workload = Mode(mode), workload or WrittenFor()
    device = workload.facts.device_type if workload.facts else "cuda"
    fits = [pair for pair in catalog.in_order(settings) if mode in pair[0].modes and device in pair[0].devices]
    return _File(fits, StepText.of(fits, mode, device, workload)).text()


@dataclass(slots=True)
class _File:
    """A file while it is written. The fields collect the lines for its top."""

    settings: list[tuple[Recipe, Value]]
    step: StepText
    environment: list[str] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    definitions: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The whole file."""
        kind, step = self.step.kind, self.step.written(TEMPLATE["STEP"])
        parts = with_functions(self.step, [self.prepare(), f"{step}\n\n\n{kind}_step = {kind.title()}Step"])
        parts = [*self.definitions, *parts]
        if any(recipe.key == "attention.empty_masks" and value == "dropped" for recipe, value in self.settings):
            parts = [re.sub(r'=batch\["(\w+_mask)"\]', r'=batch.get("\1")', part) for part in parts]
        used = ("inspect", "torch", "torch._inductor.config")
        self.imports |= {"from unittest import mock"} if _names(r"mock\.", *parts) else set()
        self.imports |= {f"import {name}" for name in used if _names(rf"{name}\.", *parts)}
        return "\n\n\n".join([self.head(), *parts]) + "\n"

    def head(self) -> str:
        """The top of the file: its docstring, imports and constants."""
        lines = sorted(self.imports, key=lambda line: (line.startswith("from"), line))
        standard = [line for line in lines if line.split()[1].partition(".")[0] in sys.stdlib_module_names]
        late = "  # noqa: E402" if self.environment else ""
        others = "\n".join(f"{line}{late}" for line in lines if line not in standard)
        blocks = ["\n".join(standard), *self.environment, others, self.step.written(TEMPLATE["CONSTANTS"])]
        return "\n\n".join([self.docstring(), *filter(None, blocks)])

    def docstring(self) -> str:
        """The header: the measured speed-up, the settings, and how to use the file."""
        found = ", ".join(sorted(format_setting(recipe.key, value) for recipe, value in self.settings)) or "none"
        measured = f": {self.step.workload.measured}" if self.step.workload.measured else ""
        packages = sorted({recipe.package for recipe, value in self.settings if value != recipe.default} - {""})
        needs = f" Needs {' and '.join(packages)}." if packages else ""
        first = f"Settings that perf-advisor {__version__} measured to be faster{measured}."
        filled = {"MEASURED": first, "SETTINGS": " ".join([f"Settings: {found}.{needs}", *self.left_out()])}
        wrapped = {name: textwrap.fill(text, LINE) for name, text in filled.items()}
        text = self.step.written(TEMPLATE["HEADER"], wrapped).replace("\\", "\\\\").replace('"""', r"\"\"\"")
        return f'"""{text}\n"""'

    def prepare(self) -> str:
        """The function ``prepare``, with the settings in the order in which they are applied."""
        lines, options = defaultdict[Stage, list[str]](list), dict[str, str]()
        for recipe, value in self.settings:
            if recipe.stage is Stage.ENVIRONMENT:
                self.environment.append(recipe.code(value).strip())
            elif hasattr(recipe, "options"):
                for name, argument in recipe.options(value).items():  # it may wrap an earlier recipe's argument
                    options[name] = repr(argument).replace(f"loader.{name}", options.get(name, f"loader.{name}"))
                    self.of_code(recipe.code(value))  # the argument may need its definitions
            elif recipe.stage is Stage.STEP and (not recipe.plan_field or recipe.key.startswith("loop.")):
                lines[Stage.STEP] += [f"# Put this into your loop ({format_setting(recipe.key, value)}):"]
                lines[Stage.STEP] += [textwrap.indent(recipe.code(value).strip(), "#     ", lambda _: True)]
            elif recipe.stage < Stage.COMPILE or (recipe.compiles and value == "none"):
                lines[recipe.stage] += self.of_code(recipe.code(value))
        if "compiles_loss" not in self.step.words:
            lines[Stage.COMPILE] += self.of_code(self.step.compilation())
        blocks = {
            "GLOBALS": [*lines[Stage.GLOBAL], *lines[Stage.MODEL]],
            "OPTIMIZER": lines[Stage.OPTIMIZER],
            "LOADER": [*lines[Stage.DATA], self.loader(options)],
            "COMPILE": lines[Stage.COMPILE],
            "OTHERS": [*lines[Stage.STEP], *(f"# {line}" for line in self.left_out())],
        }
        body = {name: "\n".join(filter(None, texts)) for name, texts in blocks.items()}
        needs_device = _names(r"device\b", self.step.written(TEMPLATE["PREPARE"], body))
        return self.step.written(TEMPLATE["PREPARE"], body | {"DEVICE": "device" if needs_device else ""})

    def of_code(self, code: str) -> list[str]:
        """The statements of a recipe's code. Its imports and definitions are added to the top of the file."""
        imports, definitions, statements = parts_of(code)
        self.imports |= set(imports)
        self.definitions += [one for one in definitions if one not in self.definitions]
        return statements

    def loader(self, options: dict[str, str]) -> str:
        """The code for a new loader with all loader settings."""
        facts = self.step.workload.facts
        found = facts.loader if facts else None
        if not options:
            return ""
        if facts and not found:
            does = {"batch_size": "make batches of {} samples", "collate_fn": "call without_empty_masks(batch)"}
            told = [text.format(options[name]) for name, text in does.items() if name in options]
            return f"# Your data is not a DataLoader: {' and '.join(told)}."
        sampling = ["batch_size", "sampler", "drop_last"]
        if found and found.custom_batch_sampler:
            sampling = ["batch_sampler"]
        elif found and found.iterable_dataset:
            sampling.remove("sampler")
        arguments = {name: f"loader.{name}" for name in ("dataset", *sampling, *_KEPT)} | options
        return call("loader = torch.utils.data.DataLoader", [f"{name}={value}" for name, value in arguments.items()])

    def left_out(self) -> Iterator[str]:
        """A sentence for each setting that needs too much code for the file."""
        of_parallel = (*OF_DDP, "strategy") if self.step.plan.strategy == "ddp" else ()
        for recipe, value in self.settings:
            lacks = recipe.key.startswith("parallel.") and recipe.plan_field not in of_parallel
            lacks |= recipe.plan_field == "cuda_graph" and self.step.words.isdisjoint(("graph", "around"))
            lacks |= recipe.key == "data.transforms_on_device" and not self.step.transforms
            if value != recipe.default and lacks:
                setting = format_setting(recipe.key, value)
                yield f"Not in this file: {setting}. It needs more code; advisor.load applies it."


def parts_of(code: str) -> tuple[list[str], list[str], list[str]]:
    """The imports, definitions and other statements of a recipe's code, with the comments above them."""
    lines, done = code.splitlines(), 0
    imports, definitions, statements = list[str](), list[str](), list[str]()
    for node in ast.parse(code).body:
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))]) - 1
        # The comments above a statement belong to it.
        text = "\n".join(line for line in lines[done : node.end_lineno] if not line.startswith("# in the loop"))
        done = node.end_lineno or first
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append("\n".join(lines[first:done]))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) or re.match(r"[A-Z_]+ = ", lines[first]):
            definitions.append(text.strip("\n"))
        else:
            statements.append(text.strip("\n"))
    return imports, definitions, statements


def with_functions(step: StepText, parts: list[str]) -> list[str]:
    """Add the template's functions that the parts of a file use, before these parts."""
    for function in reversed(TEMPLATE["FUNCTIONS"].split("\n\n\n")):
        name = re.findall(r"\w+", function)[1]
        parts = [step.written(function), *parts] if _names(rf"{name}\b", *parts) else parts
    return parts


def _names(pattern: str, *sources: str) -> bool:
    """Whether code outside of comments contains a name that matches a pattern."""
    return any(re.search(rf"^[^#]*\b{pattern}", source, re.MULTILINE) for source in sources)
