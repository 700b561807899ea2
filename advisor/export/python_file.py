"""The Python file: settings as a module of plain PyTorch that does what ``advisor.load`` does without this package."""

import ast
import functools
import json
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping

from advisor.errors import UsageError
from advisor.export import python_templates as templates
from advisor.export import top_level
from advisor.export.top_level import definitions_in, library_for, without_library
from advisor.figures.formatting import format_setting
from advisor.recipe import Recipe, Stage
from advisor.recipe.catalog import Catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, Value
from advisor.step import FREEZING, compile_source, modules_in_order
from advisor.version import __version__

# What exists only inside a step; statements of a recipe's code that read these belong to the loop, not to prepare().
_LOOP_NAMES = frozenset({"inputs", "targets", "output", "loss", "batch"})
_TRANSFORMS = "data.transforms_on_device"
_GUARDS = {
    Stage.OPTIMIZER: "if optimizer is not None:",
    Stage.DATA: "if isinstance(loader, torch.utils.data.DataLoader):",
}


def python_source(
    catalog: Catalog,
    settings: Mapping[str, Value],
    mode: Mode | str,
    *,
    own_step: bool = False,
    loss_known: bool = False,
) -> str:
    """Python source with ``prepare(model, optimizer, loader)`` and ``train_step`` or ``infer_step``, by ``mode``.

    With ``own_step`` it has ``own_step(step, model)`` in place of these. Where the form of the loss is known, the code
    that finds it out by trying is left out, which is a third of a short file.

    ``prepare`` runs the recipes' own code in the order of their stages. The step is the code that trials run, word for
    word, with the plan as data.
    Settings of the other mode are left out, as ``Tuning`` leaves them out. Raises UsageError for settings that no
    recipe knows or that cannot be combined.
    """
    mode = Mode(mode)
    chosen = _chosen(catalog, settings, mode)
    plan = _plan(chosen, mode)
    wrapper = _device_loader(chosen, plan)
    step = [templates.STEP_PLAN, _own_step(plan) if own_step else _step(plan)]
    tries_none = loss_known and mode is Mode.TRAIN and not own_step
    if tries_none:
        step.append(templates.KNOWN_LOSS)
    codes = {recipe.key: _shown(recipe, value) for recipe, value in chosen if _has_definitions(recipe)}
    without_codes = _prepare([pair for pair in chosen if not _has_definitions(pair[0])], plan, wrapper, {})
    held = {*_held_by(codes.values()), *(("LossTries",) if tries_none else ())}
    library = library_for([without_codes, *codes.values(), *step], held)
    imports = ["import torch", "from types import SimpleNamespace", *library.imports]
    plan_data = _plan_data(plan, library.text)
    others = ("\n".join(imports), plan_data, *step, templates.PREPARE)
    taken = {name: text for code in others for name, text in top_level.bindings(code).items()}
    taken.update(library.binds)
    divided = _divided(codes, taken, without_codes)
    imports += [text for parts in divided.values() for text in parts.imports]
    constants = dict.fromkeys(text for parts in divided.values() for text in parts.constants)
    definitions = dict.fromkeys(text for parts in divided.values() for text in parts.definitions)
    header = _header(chosen, _usage(mode, own_step=own_step), imports)
    head = "\n\n".join(filter(None, [header, "\n".join(constants), plan_data]))
    prepare = _prepare(chosen, plan, wrapper, divided)
    whole = [head, *definitions, prepare, *reversed(step), f"{templates.LIBRARY.strip()}\n\n\n{library.text}"]
    return "\n\n\n".join(part.strip("\n") for part in whole) + "\n"


def _chosen(catalog: Catalog, settings: Mapping[str, Value], mode: Mode) -> list[tuple[Recipe, Value]]:
    """The settings of a mode with their recipes, in the order of their stages. Raises UsageError for bad ones."""
    catalog.check(settings)
    if conflict := catalog.conflict(settings):
        raise UsageError(f"these settings cannot be combined: {conflict}.", "Leave one of them out.")
    return [(recipe, value) for recipe, value in catalog.in_order(settings) if mode in recipe.modes]


def _has_definitions(recipe: Recipe) -> bool:
    """Whether a recipe's code is for ``prepare``, and its definitions for the top of the file.

    Worker processes import those of loaders, and a model that is saved as a whole holds others.
    """
    return recipe.stage in (Stage.MODEL, Stage.OPTIMIZER, Stage.DATA) and not recipe.compiles


def _held_by(codes: Iterable[str]) -> Collection[str]:
    """The names of the module of loaders where one of these codes contains it as a whole; else none."""
    every = [one for module in modules_in_order(["loaders"]) for one in definitions_in(module) if not one.is_import]
    of_loaders = {name for one in every for name in one.binds}
    return of_loaders if any(of_loaders <= top_level.bindings(code).keys() for code in codes) else ()


def _plan(chosen: list[tuple[Recipe, Value]], mode: Mode) -> StepPlan:
    """The settings' plan of a step. The device is the model's, found when the file runs."""
    values: dict[str, Value] = {"grad_mode": "caller"}
    values |= {recipe.plan_field: value for recipe, value in chosen if recipe.plan_field}
    if values.get("memory_format") == "contiguous":
        del values["memory_format"]
    return StepPlan(mode=mode, device="cuda", **values)  # type: ignore[arg-type]


def _plan_data(plan: StepPlan, code: str) -> str:
    """The plan as the file has it: what its code reads. ``step_plan`` adds what follows from the device."""
    read = set(re.findall(r"\bplan\.(\w+)", code))
    names = [name for name in dir(plan) if name in read]
    values = {name: getattr(plan, name) for name in names if name not in ("device", "device_type", "clip_norm")}
    lines = [f'    "{name}": {json.dumps(v) if isinstance(v, str) else repr(v)},' for name, v in values.items()]
    return "\n".join(["# How a step runs.", "PLAN = {", *lines, "}", "StepPlan = SimpleNamespace"])


def _divided(codes: Mapping[str, str], taken: Mapping[str, str], prepare: str) -> dict[str, top_level.Hoisted]:
    """The code of recipes by key, split for the top of the file and for ``prepare``.

    ``taken`` are the names of the rest of the file, and ``prepare`` is the function as it is without these recipes.
    """
    bound = {key: top_level.bindings(code) for key, code in codes.items()}
    found = {}
    for key, code in codes.items():
        others = top_level.locals_of(prepare)
        others |= {name for names in bound.values() for name, text in names.items() if bound[key].get(name) != text}
        parts = top_level.hoist(code, taken, others)
        taken = {**taken, **parts.binds}
        found[key] = parts
    return found


# --- the head of the file -------------------------------------------------------------------------------------


def _usage(mode: Mode, *, own_step: bool) -> str:
    if own_step:
        return templates.OWN_STEP_USAGE
    return templates.TRAIN_USAGE if mode is Mode.TRAIN else templates.INFER_USAGE


def _header(chosen: list[tuple[Recipe, Value]], usage: str, imports: list[str]) -> str:
    lines = [format_setting(recipe.key, value) for recipe, value in sorted(chosen, key=lambda pair: pair[0].key)]
    text = templates.HEADER.substitute(
        version=__version__,
        packages=_packages(chosen),
        settings=textwrap.indent("\n".join(lines or ["none"]), "    "),
        usage=usage.strip("\n"),
    )
    head = text.replace("\\", "\\\\").replace('"""', r"\"\"\"").join(('"""', '\n"""'))
    return f"{head}\n\n{_imported(chosen, imports)}"


def _packages(chosen: list[tuple[Recipe, Value]]) -> str:
    extra = sorted({recipe.package for recipe, value in chosen if recipe.package and value != recipe.default})
    return " and ".join(["torch", *extra]) if extra else "torch and nothing else"


def _imported(chosen: list[tuple[Recipe, Value]], imports: list[str]) -> str:
    """The file's imports; before torch, what must be in the environment when torch is imported."""
    standard, others = top_level.import_blocks(imports)
    environment = [
        f"# {_label(recipe, value)}\n{recipe.code(value).strip()}"
        for recipe, value in chosen
        if recipe.stage is Stage.ENVIRONMENT
    ]
    if environment:
        others = "\n".join(f"{line}  # noqa: E402" for line in others.splitlines())
    return "\n\n".join([standard, *environment, others])


# --- prepare --------------------------------------------------------------------------------------------------


def _prepare(
    chosen: list[tuple[Recipe, Value]], plan: StepPlan, wrapper: str, divided: Mapping[str, top_level.Hoisted]
) -> str:
    pairs = [(recipe, value) for recipe, value in chosen if not recipe.compiles]
    blocks = [block for recipe, value in pairs for block in _prepared(recipe, value, divided.get(recipe.key))]
    blocks += _compiled([(recipe, value) for recipe, value in chosen if recipe.compiles], plan)
    if plan.strategy != "single":
        blocks.append(templates.SPREAD.strip("\n"))
    if wrapper:
        blocks.append(wrapper)
    if plan.compile_optimizer or (plan.cuda_graph and plan.mode == Mode.TRAIN):
        blocks.append(templates.CAPTURABLE.strip("\n"))
    if plan.attention_backend != "auto" and plan.compiles_with != "none":
        blocks.insert(0, templates.TELL_ATTENTION_APART.strip("\n"))
    if any(recipe.compiles for recipe, _ in chosen):
        blocks.insert(0, templates.AS_WRITTEN.strip("\n"))
    if any("device" in block for block in blocks):
        blocks.insert(0, "device = next(model.parameters()).device")
    if plan.strategy != "single":
        blocks.insert(0, templates.JOIN_RANKS.strip("\n"))
    body = "\n".join([*blocks, "return model, optimizer, loader"])
    return templates.PREPARE.strip("\n") + "\n" + textwrap.indent(body, "    ")


def _compiled(chosen: list[tuple[Recipe, Value]], plan: StepPlan) -> Iterator[str]:
    """The code that compiles the model: one statement for all settings of compilation."""
    if not chosen:
        return
    yield "\n".join(f"# {_label(recipe, value)}" for recipe, value in chosen)
    if plan.freezing:
        yield FREEZING.strip("\n")
    if plan.compiles_loss:
        yield "# train_step() compiles the model and the loss as one."
    elif plan.compiles_with != "none":
        how = compile_source(
            mode=plan.compiles_with,
            scope=plan.compile_scope,
            dynamic=plan.compile_dynamic,
        )
        yield without_library(how).strip("\n")


def _prepared(recipe: Recipe, value: Value, parts: top_level.Hoisted | None) -> Iterator[str]:
    """A recipe's part of prepare(): its code, or what is not at the top, under a comment that says what it is."""
    label = f"# {_label(recipe, value)}"
    if recipe.stage is Stage.STEP:
        if not recipe.plan_field:
            code = textwrap.indent(recipe.code(value).strip(), "#     ", lambda _: True)
            yield f"{label}\n# This is for you to put into the loop:\n{code}"
        return
    if recipe.stage is Stage.ENVIRONMENT:
        return
    whole = _shown(recipe, value)
    code, traces = parts.rest if parts else whole, "class CannotTraceError" in whole
    may_refuse = "raise ValueError" in whole and recipe.stage is not Stage.DATA  # a loader says so itself
    if recipe.stage is Stage.OPTIMIZER or traces or may_refuse:
        code = _left_out_where_refused(code, format_setting(recipe.key, value), traces=traces)
    guard = _GUARDS.get(recipe.stage)
    if guard and not code.startswith(guard) and ast.parse(code).body:
        code = f"{guard}\n{textwrap.indent(code, '    ')}"
    yield f"{label}\n{code}" if code else label


def _left_out_where_refused(code: str, setting: str, *, traces: bool) -> str:
    """Code whose last statement changes a model or an optimizer, with a warning where these do not allow it."""
    body = ast.parse(code).body
    if not body or isinstance(body[-1], ast.FunctionDef | ast.ClassDef):
        return code
    lines, first = code.splitlines(), body[-1].lineno - 1
    warned = templates.LEFT_OUT.substitute(
        call=textwrap.indent("\n".join(lines[first:]).strip(), "    "),
        error="CannotTraceError" if traces else "ValueError",
        reason=f"{setting} is left out: {'the model ' if traces else ''}",
    )
    return "\n".join([*lines[:first], warned.strip("\n")])


def _shown(recipe: Recipe, value: Value) -> str:
    """A recipe's code as prepare() has it, where it is all there."""
    return without_library(_outside_the_loop(recipe.code(value)).strip("\n"))


@functools.lru_cache(maxsize=64)  # one export asks twice for a recipe's code
def _outside_the_loop(code: str) -> str:
    """A recipe's code without the statements and comments that belong into the loop."""
    lines = code.splitlines()
    dropped: set[int] = {place for place, line in enumerate(lines) if line.startswith("# in the loop")}
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue  # names inside a definition are its own
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        if names & _LOOP_NAMES:
            dropped |= set(range(statement.lineno - 1, statement.end_lineno or statement.lineno))
    return "\n".join(line for place, line in enumerate(lines) if place not in dropped)


def _device_loader(chosen: list[tuple[Recipe, Value]], plan: StepPlan) -> str:
    transforms = any(recipe.key == _TRANSFORMS and value for recipe, value in chosen)
    if not (plan.device_prefetch or transforms):
        return ""
    move = "lambda batch: device_transform(move(batch))" if transforms else "move"
    non_blocking = plan.non_blocking or plan.device_prefetch
    filled = {"move": move, "non_blocking": non_blocking, "ahead": plan.device_prefetch}
    return templates.DEVICE_LOADER.substitute(filled).strip("\n")


def _label(recipe: Recipe, value: Value) -> str:
    return f"{recipe.title} ({format_setting(recipe.key, value)})"


# --- the step -------------------------------------------------------------------------------------------------


def _own_step(plan: StepPlan) -> str:
    captured = 'GraphedOwnStep(step) if step.device.type == "cuda" else step'
    return templates.OWN_STEP.substitute(step=captured if plan.cuda_graph is True else "step")


def _step(plan: StepPlan) -> str:
    if plan.mode != Mode.TRAIN:
        return templates.INFER_STEP.substitute(step=_captured(plan))
    update = ", compiled_step(optimizer, torch.device(plan.device))" if plan.compile_optimizer else ""
    model = "model" if plan.strategy == "single" else "over_ranks(model)"
    return templates.TRAIN_STEP.substitute(update=update, step=_captured(plan), model=model)


def _captured(plan: StepPlan) -> str:
    captured = "GraphedStep"
    return f'{captured}(step) if step.device.type == "cuda" else step' if plan.cuda_graph else "step"
