"""The Python file: settings as a module of plain PyTorch that does what ``advisor.load`` does without this package."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from string import Template

import advisor
from advisor.catalog import Catalog
from advisor.errors import UsageError
from advisor.export import python_templates as templates
from advisor.export import top_level
from advisor.formatting import format_setting
from advisor.plan import StepPlan
from advisor.portable import FREEZING, compile_options, compile_source, source
from advisor.recipe import Recipe, Stage
from advisor.records import Mode, Value

# What exists only inside a step; statements of a recipe's code that read these belong to the loop, not to prepare().
_LOOP_NAMES = frozenset({"inputs", "targets", "output", "loss", "batch"})
_TRANSFORMS = "data.transforms_on_device"
_CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
_RANK_OF_FORMAT = {"channels_last": 4, "channels_last_3d": 5}
_ATTENTION = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
_COMPILE = (
    "compile.mode",
    "compile.scope",
    "compile.dynamic",
    "compile.freezing",
    "compile.autotune",
    "compile.combo_kernels",
)
_GUARDS = {
    Stage.OPTIMIZER: "if optimizer is not None:",
    Stage.DATA: "if isinstance(loader, torch.utils.data.DataLoader):",
}
_PLAN_FIELDS = {
    "precision.autocast": "autocast",
    "step.zero_grad": "zero_grad",
    "infer.grad": "grad_mode",
    "compile.mode": "compile_mode",
    "compile.scope": "compile_scope",
    "compile.dynamic": "compile_dynamic",
    "compile.freezing": "freezing",
    "compile.autotune": "compile_autotune",
    "compile.combo_kernels": "combo_kernels",
    "compile.optimizer": "compile_optimizer",
    "step.clip_grad": "clip_grad",
    "step.cuda_graph": "cuda_graph",
    "step.create_on_device": "create_on_device",
    "step.accumulate": "accumulate",
    "data.pin_memory": "non_blocking",
    "data.non_blocking": "non_blocking",
    "data.device_prefetch": "device_prefetch",
    "model.memory_format": "memory_format",
    "precision.weights": "input_dtype",
    "attention.backend": "attention_backend",
    "loop.loss_item": "loss_item",
    "loop.empty_cache": "empty_cache",
    "host.gc": "collector",
}


def python_source(catalog: Catalog, settings: Mapping[str, Value], mode: Mode | str) -> str:
    """Python source with ``prepare(model, optimizer, loader)`` and ``train_step`` or ``infer_step``, by ``mode``.

    ``prepare`` runs the recipes' own code in the order of their stages; the step function is generated from the plan.
    Settings of the other mode are left out, as ``Tuning`` leaves them out. Raises UsageError for settings that no
    recipe knows or that cannot be combined.
    """
    mode = Mode(mode)
    catalog.check(settings)
    conflict = catalog.conflict(settings)
    if conflict:
        raise UsageError(f"these settings cannot be combined: {conflict}.", "Leave one of them out.")
    chosen = [(recipe, value) for recipe, value in catalog.in_order(settings) if mode in recipe.modes]
    plan = _plan(chosen, mode)
    wrapper = _device_loader(chosen, plan)
    step = [
        _train_step(plan) if mode is Mode.TRAIN else _infer_step(plan),
        *_helpers(plan, wrapped=bool(wrapper)),
    ]
    imports = [*templates.IMPORTS, *(["import typing"] if wrapper else []), *(["import gc"] if _collects(plan) else [])]
    others = [pair for pair in chosen if pair[0].stage is not Stage.DATA]
    data = _data_parts(chosen, "\n".join([*imports, *step, templates.PREPARE]), _prepare(others, plan, wrapper, {}))
    constants = dict.fromkeys(text for parts in data.values() for text in parts.constants)
    definitions = dict.fromkeys(text for parts in data.values() for text in parts.definitions)
    imports += [text for parts in data.values() for text in parts.imports]
    head = "\n\n".join(filter(None, [_header(chosen, mode, imports), "\n".join(constants)]))
    whole = [head, *definitions, _prepare(chosen, plan, wrapper, data), *step]
    return "\n\n\n".join(part.strip("\n") for part in whole) + "\n"


def _plan(chosen: list[tuple[Recipe, Value]], mode: Mode) -> StepPlan:
    """How the settings make a step run. The device is the model's, found when the file runs."""
    values = {_PLAN_FIELDS[recipe.key]: value for recipe, value in chosen if recipe.key in _PLAN_FIELDS}
    if values.get("memory_format") == "contiguous":
        del values["memory_format"]
    return StepPlan(mode=mode, device="cuda", **values)  # type: ignore[arg-type]


def _data_parts(chosen: list[tuple[Recipe, Value]], file: str, prepare: str) -> dict[str, top_level.Parts]:
    """By key, the code of what concerns the loader: worker processes import what can stand at the top of the file.

    ``file`` is the rest of the file, and ``prepare`` the function as it is without these recipes.
    """
    codes = {
        recipe.key: _outside_the_loop(recipe.code(value)) for recipe, value in chosen if recipe.stage is Stage.DATA
    }
    bound = {key: top_level.bindings(code) for key, code in codes.items()}
    taken = top_level.bindings(file)
    found = {}
    for key, code in codes.items():
        others = top_level.locals_of(prepare)
        others |= {name for names in bound.values() for name, text in names.items() if bound[key].get(name) != text}
        parts = top_level.split(code, taken, others)
        taken |= top_level.bindings("\n".join([*parts.imports, *parts.constants, *parts.definitions]))
        found[key] = parts
    return found


# --- the head of the file -------------------------------------------------------------------------------------


def _header(chosen: list[tuple[Recipe, Value]], mode: Mode, imports: list[str]) -> str:
    lines = [format_setting(recipe.key, value) for recipe, value in sorted(chosen, key=lambda pair: pair[0].key)]
    usage = templates.TRAIN_USAGE if mode is Mode.TRAIN else templates.INFER_USAGE
    text = templates.HEADER.substitute(
        version=advisor.__version__,
        packages=_packages(chosen),
        settings=textwrap.indent("\n".join(lines or ["none"]), "    "),
        usage=usage.strip("\n"),
    )
    head = text.replace("\\", "\\\\").replace('"""', r"\"\"\"").join(('"""', '\n"""'))
    return f"{head}\n\n{_imported(chosen, imports)}"


def _packages(chosen: list[tuple[Recipe, Value]]) -> str:
    """What the file needs installed."""
    extra = sorted({recipe.package for recipe, value in chosen if recipe.package and value != recipe.default})
    return " and ".join(["torch", *extra]) if extra else "torch and nothing else"


def _imported(chosen: list[tuple[Recipe, Value]], imports: list[str]) -> str:
    """What the file imports; before torch, what must be in the environment when torch is imported."""
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
    chosen: list[tuple[Recipe, Value]], plan: StepPlan, wrapper: str, data: Mapping[str, top_level.Parts]
) -> str:
    pairs = [(recipe, value) for recipe, value in chosen if recipe.key not in _COMPILE]
    blocks = [block for recipe, value in pairs for block in _prepared(recipe, value, data.get(recipe.key))]
    blocks += _compiled([(recipe, value) for recipe, value in chosen if recipe.key in _COMPILE], plan)
    if plan.compile_optimizer:
        blocks.append(templates.TENSOR_RATES.strip("\n"))
    if wrapper:
        blocks.append(wrapper)
    if plan.cuda_graph and plan.mode is Mode.TRAIN:
        blocks.append(templates.CAPTURABLE.strip("\n"))
    if plan.attention_backend != "auto" and plan.compiles_with != "none":
        blocks.insert(0, templates.TELL_ATTENTION_APART.strip("\n"))
    if any(recipe.key in _COMPILE for recipe, _ in chosen):
        blocks.insert(0, templates.AS_WRITTEN.strip("\n"))
    if any("device" in block for block in blocks):
        blocks.insert(0, "device = next(model.parameters()).device")
    body = "\n".join([*blocks, "return model, optimizer, loader"])
    return templates.PREPARE.strip("\n") + "\n" + textwrap.indent(body, "    ")


def _compiled(chosen: list[tuple[Recipe, Value]], plan: StepPlan) -> Iterator[str]:
    """What compiles the model: one statement for all the settings that say how."""
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
            extras=plan.compiler_options,
        )
        yield how.strip("\n")


def _prepared(recipe: Recipe, value: Value, parts: top_level.Parts | None) -> Iterator[str]:
    """A recipe's part of prepare(): its code, or what is not at the top, under a comment that says what it is."""
    label = f"# {_label(recipe, value)}"
    if recipe.stage is Stage.STEP:
        if recipe.key not in _PLAN_FIELDS:
            code = textwrap.indent(recipe.code(value).strip(), "#     ", lambda _: True)
            yield f"{label}\n# This is for you to put into the loop:\n{code}"
        return
    if recipe.stage is Stage.ENVIRONMENT:
        return
    code = parts.rest if parts else _outside_the_loop(recipe.code(value)).strip("\n")
    guard = _GUARDS.get(recipe.stage)
    if guard and not code.startswith(guard) and ast.parse(code).body:
        code = f"{guard}\n{textwrap.indent(code, '    ')}"
    yield f"{label}\n{code}" if code else label


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
    """The loader wrapped so that its batches arrive on the device; empty when nothing asks for that."""
    transforms = any(recipe.key == _TRANSFORMS and value for recipe, value in chosen)
    if not (plan.device_prefetch or transforms):
        return ""
    move = "_to_device(batch, device)"
    moved = f"device_transform({move})" if transforms else move
    return (
        f"# Batches arrive on the device.\n{_GUARDS[Stage.DATA]}\n"
        f"    loader = DeviceLoader(loader, device, lambda batch: {moved}, {plan.device_prefetch})"
    )


def _label(recipe: Recipe, value: Value) -> str:
    return f"{recipe.title} ({format_setting(recipe.key, value)})"


# --- the step -------------------------------------------------------------------------------------------------


def _train_step(plan: StepPlan) -> str:
    before = ["device = next(model.parameters()).device", "takes_model = _takes_model(loss_fn)"]
    if plan.scales_gradients:
        before.append("scaler = torch.amp.GradScaler(device.type)")
    if plan.accumulate > 1:
        before.append("accumulated = 0  # batches since the last update")
    if plan.compiles_loss:
        options = compile_options(plan.compiles_with, plan.compile_dynamic, plan.compiler_options)
        before.append(templates.WHOLE.substitute(options=options).strip("\n"))
    before.append('parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]')
    return templates.TRAIN_STEP.substitute(
        before=textwrap.indent("\n".join(before), "    "),
        loss=_in_contexts([_creation(plan), _attention(plan), _autocast(plan)], _loss(plan), 8),
        zero_grad=textwrap.indent(_zero_grad(plan), "        "),
        apply=textwrap.indent(_apply(plan), "    "),
        update=textwrap.indent(_update(plan), "        "),
        last=textwrap.indent(_last(plan, _graphed_train(plan)), "    "),
    )


def _infer_step(plan: StepPlan) -> str:
    grad = "" if plan.runs_under == "grad" else f"torch.{plan.runs_under}()"
    return templates.INFER_STEP.substitute(
        forward=_in_contexts([grad, _creation(plan), _attention(plan), _autocast(plan)], templates.FORWARD, 8),
        last=textwrap.indent(_last(plan, templates.GRAPHED_INFER), "    "),
    )


def _loss(plan: StepPlan) -> str:
    """The model and the loss, or the function that holds both compiled."""
    if not plan.compiles_loss:
        return templates.LOSS
    text = templates.LOSS
    for eager, whole in templates.WHOLE_CALLS.items():
        text = text.replace(eager, whole)
    return text


def _update(plan: StepPlan) -> str:
    """Backward and optimizer step. Activation checkpoints run parts of the forward pass again in the backward one."""
    several = plan.accumulate > 1
    part = f"loss / {plan.accumulate}" if several else "loss"
    unscaled = f"({part}).backward()" if several else "loss.backward()"
    backward = _in_contexts(
        [_attention(plan)], f"scaler.scale({part}).backward()" if plan.scales_gradients else unscaled, 0
    )
    if not several:
        return f"{backward}\napply_gradients()"
    turn = f"accumulated = (accumulated + 1) % {plan.accumulate}"
    return f"nonlocal accumulated\n{backward}\n{turn}\nif accumulated == 0:\n    apply_gradients()"


def _zero_grad(plan: StepPlan) -> str:
    cleared = templates.ZERO_GRAD[plan.zero_grad]
    return f"if accumulated == 0:\n{textwrap.indent(cleared, '    ')}" if plan.accumulate > 1 else cleared


def _apply(plan: StepPlan) -> str:
    """A function that clips the gradients, where the caller wants that, and updates the parameters."""
    foreach = {"default": "", "foreach": ", foreach=True", "for-loop": ", foreach=False"}[plan.clip_grad]
    if plan.scales_gradients:
        return templates.SCALED_APPLY.substitute(foreach=foreach).strip("\n")
    step = "compiled_step()" if plan.compile_optimizer else "optimizer.step()"
    compiled = templates.COMPILED_STEP if plan.compile_optimizer else ""
    return (compiled + templates.APPLY.substitute(foreach=foreach, step=step)).strip("\n")


def _graphed_train(plan: StepPlan) -> str:
    backward = "    loss.backward()"
    return templates.GRAPHED_TRAIN.replace(backward, _in_contexts([_attention(plan)], backward.strip(), 4))


def _creation(plan: StepPlan) -> str:
    """A device is a context: what is created without naming one is created there."""
    return "device" if plan.create_on_device else ""


def _attention(plan: StepPlan) -> str:
    return "" if plan.attention_backend == "auto" else "_attention()"


def _autocast(plan: StepPlan) -> str:
    return "" if plan.autocast == "none" else f"torch.autocast(device.type, dtype=torch.{plan.autocast})"


def _in_contexts(contexts: list[str], body: str, indent: int) -> str:
    """The body inside a ``with`` statement of the contexts that are not empty."""
    body = body.strip("\n")
    wanted = [context for context in contexts if context]
    if wanted:
        body = f"with {', '.join(wanted)}:\n{textwrap.indent(body, '    ')}"
    return textwrap.indent(body, " " * indent)


def _last(plan: StepPlan, graphed: str) -> str:
    """How the step function ends: the step itself, then what the loop does after each one."""
    step = (graphed if plan.cuda_graph else _eager(plan)).strip("\n")
    habits = _habits(plan) if plan.mode is Mode.TRAIN else ""
    whole = f"{step}\n\n{habits}" if habits else f"{step}\n\nreturn step"
    return _collected(whole, plan) if _collects(plan) else whole


def _collects(plan: StepPlan) -> bool:
    """Whether the step runs Python's garbage collector itself."""
    return plan.collector != "default"


def _collected(whole: str, plan: StepPlan) -> str:
    """The text of a step with the collector behind it: ``whole`` ends by returning the function that runs one."""
    before, name = whole.rsplit("return ", 1)
    return before + Template(templates.COLLECTED).substitute(step=name.strip(), how=plan.collector).strip("\n")


def _habits(plan: StepPlan) -> str:
    """A step that does after the update what the plan says; empty for a plan that says nothing."""
    after = [*templates.AFTER_LOSS[plan.loss_item], *templates.AFTER_MEMORY[plan.empty_cache]]
    if not after:
        return ""
    # Deleted or not: a batch that is moved here is still alive when the cache is emptied.
    before = ["batch = _to_device(batch, device)"] if plan.empty_cache == "every_step" else []
    body = textwrap.indent("\n".join([*before, "loss = step(batch)", *after, "return loss"]), "    ")
    total = "loss_sum = None\n\n" if plan.loss_item == "accumulated" else ""
    shared = "    nonlocal loss_sum\n" if plan.loss_item == "accumulated" else ""
    return f"{total}def whole_step(batch):\n{shared}{body}\n\nreturn whole_step"


def _eager(plan: StepPlan) -> str:
    marks = plan.compile_mode in _CUDA_GRAPH_MODES
    return templates.MARKED_EAGER if marks else templates.EAGER


def _helpers(plan: StepPlan, *, wrapped: bool) -> Iterator[str]:
    if wrapped:
        yield source("device_loader").removeprefix("import typing")
    if plan.mode is Mode.TRAIN:
        yield templates.TAKES_MODEL
        yield templates.SPLIT
    else:
        yield templates.ARGUMENTS
    yield _to_device(plan)
    if _attention(plan):
        yield Template(templates.ONLY_ATTENTION).substitute(backend=_ATTENTION[plan.attention_backend])
    yield templates.MAP
    if plan.cuda_graph:
        yield templates.GRAPHED
    if _collects(plan):
        yield source("collector").removeprefix("import gc")


def _to_device(plan: StepPlan) -> str:
    arguments = "device, non_blocking=True" if plan.non_blocking or plan.device_prefetch else "device"
    rank = _RANK_OF_FORMAT.get(plan.memory_format)
    if plan.input_dtype != "none":
        move = templates.MOVE if rank is None else templates.MOVE_IN_FORMAT
        moved = Template(move).substitute(arguments=arguments, rank=rank, format=plan.memory_format)
        return Template(templates.TO_DEVICE_AS).substitute(move=textwrap.indent(moved, " " * 8), dtype=plan.input_dtype)
    if rank is None:
        return Template(templates.TO_DEVICE).substitute(arguments=arguments)
    return Template(templates.TO_DEVICE_IN_FORMAT).substitute(arguments=arguments, rank=rank, format=plan.memory_format)
