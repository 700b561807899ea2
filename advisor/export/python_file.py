"""The Python file: settings as a module of plain PyTorch that does what ``advisor.load`` does without this package."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from string import Template

import advisor
from advisor.catalog import Catalog
from advisor.errors import UsageError
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
_COMPILE = ("compile.mode", "compile.scope", "compile.dynamic", "compile.freezing")
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
    imports = [*_IMPORTS, "import typing"] if wrapper else list(_IMPORTS)
    others = [pair for pair in chosen if pair[0].stage is not Stage.DATA]
    data = _data_parts(chosen, "\n".join([*imports, *step, _PREPARE]), _prepare(others, plan, wrapper, {}))
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
    usage = _TRAIN_USAGE if mode is Mode.TRAIN else _INFER_USAGE
    text = _HEADER.substitute(
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
        blocks.append(_TENSOR_RATES.strip("\n"))
    if wrapper:
        blocks.append(wrapper)
    if plan.cuda_graph and plan.mode is Mode.TRAIN:
        blocks.append(_CAPTURABLE.strip("\n"))
    if plan.attention_backend != "auto" and plan.compiles_with != "none":
        blocks.insert(0, _TELL_ATTENTION_APART.strip("\n"))
    if any(recipe.key in _COMPILE for recipe, _ in chosen):
        blocks.insert(0, _AS_WRITTEN.strip("\n"))
    if any("device" in block for block in blocks):
        blocks.insert(0, "device = next(model.parameters()).device")
    body = "\n".join([*blocks, "return model, optimizer, loader"])
    return _PREPARE.strip("\n") + "\n" + textwrap.indent(body, "    ")


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
        how = compile_source(mode=plan.compiles_with, scope=plan.compile_scope, dynamic=plan.compile_dynamic)
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
        before.append(_WHOLE.substitute(options=compile_options(plan.compiles_with, plan.compile_dynamic)).strip("\n"))
    before.append('parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]')
    return _TRAIN_STEP.substitute(
        before=textwrap.indent("\n".join(before), "    "),
        loss=_in_contexts([_creation(plan), _attention(plan), _autocast(plan)], _loss(plan), 8),
        zero_grad=textwrap.indent(_zero_grad(plan), "        "),
        apply=textwrap.indent(_apply(plan), "    "),
        update=textwrap.indent(_update(plan), "        "),
        last=textwrap.indent(_last(plan, _graphed_train(plan)), "    "),
    )


def _infer_step(plan: StepPlan) -> str:
    grad = "" if plan.runs_under == "grad" else f"torch.{plan.runs_under}()"
    return _INFER_STEP.substitute(
        forward=_in_contexts([grad, _creation(plan), _attention(plan), _autocast(plan)], _FORWARD, 8),
        last=textwrap.indent(_last(plan, _GRAPHED_INFER), "    "),
    )


def _loss(plan: StepPlan) -> str:
    """The model and the loss, or the function that holds both compiled."""
    if not plan.compiles_loss:
        return _LOSS
    text = _LOSS
    for eager, whole in _WHOLE_CALLS.items():
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
    cleared = _ZERO_GRAD[plan.zero_grad]
    return f"if accumulated == 0:\n{textwrap.indent(cleared, '    ')}" if plan.accumulate > 1 else cleared


def _apply(plan: StepPlan) -> str:
    """A function that clips the gradients, where the caller wants that, and updates the parameters."""
    foreach = {"default": "", "foreach": ", foreach=True", "for-loop": ", foreach=False"}[plan.clip_grad]
    if plan.scales_gradients:
        return _SCALED_APPLY.substitute(foreach=foreach).strip("\n")
    step = "compiled_step()" if plan.compile_optimizer else "optimizer.step()"
    compiled = _COMPILED_STEP if plan.compile_optimizer else ""
    return (compiled + _APPLY.substitute(foreach=foreach, step=step)).strip("\n")


def _graphed_train(plan: StepPlan) -> str:
    backward = "    loss.backward()"
    return _GRAPHED_TRAIN.replace(backward, _in_contexts([_attention(plan)], backward.strip(), 4))


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
    return f"{step}\n\n{habits}" if habits else f"{step}\n\nreturn step"


def _habits(plan: StepPlan) -> str:
    """A step that does after the update what the plan says; empty for a plan that says nothing."""
    after = [*_AFTER_LOSS[plan.loss_item], *_AFTER_MEMORY[plan.empty_cache]]
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
    return _MARKED_EAGER if marks else _EAGER


def _helpers(plan: StepPlan, *, wrapped: bool) -> Iterator[str]:
    if wrapped:
        yield source("device_loader").removeprefix("import typing")
    if plan.mode is Mode.TRAIN:
        yield _TAKES_MODEL
        yield _SPLIT
    else:
        yield _ARGUMENTS
    yield _to_device(plan)
    if _attention(plan):
        yield Template(_ONLY_ATTENTION).substitute(backend=_ATTENTION[plan.attention_backend])
    yield _MAP
    if plan.cuda_graph:
        yield _GRAPHED


def _to_device(plan: StepPlan) -> str:
    arguments = "device, non_blocking=True" if plan.non_blocking or plan.device_prefetch else "device"
    rank = _RANK_OF_FORMAT.get(plan.memory_format)
    if plan.input_dtype != "none":
        move = _MOVE if rank is None else _MOVE_IN_FORMAT
        moved = Template(move).substitute(arguments=arguments, rank=rank, format=plan.memory_format)
        return Template(_TO_DEVICE_AS).substitute(move=textwrap.indent(moved, " " * 8), dtype=plan.input_dtype)
    if rank is None:
        return Template(_TO_DEVICE).substitute(arguments=arguments)
    return Template(_TO_DEVICE_IN_FORMAT).substitute(arguments=arguments, rank=rank, format=plan.memory_format)


# --- the text of the file -------------------------------------------------------------------------------------

_HEADER = Template("""What perf-advisor $version measured to be faster, as plain PyTorch. Needs $packages.

The settings:

$settings

How to use it:

$usage""")

_TRAIN_USAGE = """
    model, optimizer, loader = prepare(model, optimizer, loader)
    step = train_step(model, optimizer, loss_fn)
    for batch in loader:
        loss = step(batch)
"""

_INFER_USAGE = """
    model, _, loader = prepare(model, loader=loader)
    step = infer_step(model)
    for batch in loader:
        output = step(batch)
"""

_IMPORTS = ("import inspect", "from collections.abc import Mapping", "import torch")

_PREPARE = '''
def prepare(model, optimizer=None, loader=None):
    """Apply the settings to the objects. Use what comes back; make learning-rate schedulers after this."""
'''

_CAPTURABLE = """
# A captured step cannot ask the host: step counts and learning rates live on the device.
if optimizer is not None and device.type == "cuda":
    capturable = "capturable" in optimizer.defaults
    for group in optimizer.param_groups:
        if capturable:
            group["capturable"] = True
        if (capturable or group.get("fused")) and not isinstance(group["lr"], torch.Tensor):
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
    for state in optimizer.state.values():
        if capturable and "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=device)
"""

_AS_WRITTEN = """
# A model that is compiled already is compiled anew.
model = getattr(model, "_orig_mod", model)
"""

_TELL_ATTENTION_APART = """
# This cache of the compiler would take a graph of another attention kernel for this one (pytorch/pytorch#186458).
from torch._functorch import config as autograd_config

autograd_config.enable_autograd_cache = False
"""

_TENSOR_RATES = """
# What changes between steps goes into tensors: a number would be compiled in, and compiled again when it changes.
if optimizer is not None:
    capturable = "capturable" in optimizer.defaults
    on_gpu = device.type == "cuda"
    for group in optimizer.param_groups:
        if capturable and on_gpu:
            group["capturable"] = True
        if (capturable or type(optimizer) is torch.optim.SGD) and not isinstance(group["lr"], torch.Tensor):
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
    for state in optimizer.state.values():
        if capturable and on_gpu and "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=device)
"""

_TRAIN_STEP = Template('''
def train_step(model, optimizer, loss_fn=None, clip_grad=None):
    """A callable ``step(batch) -> detached loss``. Pass what ``prepare`` returned.

    ``loss_fn`` is ``loss_fn(output, target)`` or ``loss_fn(model, batch)``; without one the model returns its loss.
    A batch is ``(inputs, target)``, or a dict of the model's keyword arguments and the target. ``clip_grad`` is what
    the norm of the gradients is clipped to before the update.
    """
$before
    model.train()

    def compute_loss(batch):
$loss

$apply

    def update(loss):
$update

    def run(batch):
$zero_grad
        loss = compute_loss(batch)
        update(loss)
        return loss.detach()

$last
''')

_LOSS = """
if takes_model:
    return loss_fn(model, batch)
if loss_fn is None:
    if not isinstance(batch, Mapping):
        raise TypeError("this batch is no mapping of the model's arguments: pass a loss_fn to train_step")
    output = model(**batch)
    return output["loss"] if isinstance(output, Mapping) else output.loss
args, kwargs, target = _split(batch)
return loss_fn(model(*args, **kwargs), target)
"""

# What the compiled functions below take the place of.
_WHOLE_CALLS = {
    "loss_fn(model, batch)": "whole_loss_fn(model, batch)",
    "model(**batch)": "whole_model(**batch)",
    "loss_fn(model(*args, **kwargs), target)": "whole_loss(target, *args, **kwargs)",
}

_WHOLE = Template("""
# Forward pass and loss as one: whichever of these forms the loss has is compiled.
whole_model = torch.compile(model, $options)
whole_loss_fn = torch.compile(loss_fn, $options) if takes_model else None

@torch.compile($options)
def whole_loss(target, *args, **kwargs):
    return loss_fn(model(*args, **kwargs), target)

""")

_ZERO_GRAD = {
    "none": "optimizer.zero_grad(set_to_none=True)",
    "zeros": "optimizer.zero_grad(set_to_none=False)",
    "manual": "for parameter in parameters:\n    parameter.grad = None",
}

_COMPILED_STEP = """
@torch.compile
def compiled_step():
    optimizer.step()
"""

_APPLY = Template("""
def apply_gradients():
    if clip_grad is not None:
        torch.nn.utils.clip_grad_norm_(parameters, clip_grad$foreach)
    $step
""")

# What the loop does after an update, by the values of loop.loss_item and loop.empty_cache.
_AFTER_LOSS = {
    "never": [],
    "every_step": ["loss.item()  # the host waits for the device"],
    "accumulated": ["loss_sum = loss.clone() if loss_sum is None else loss_sum.add_(loss)"],
}
_AFTER_MEMORY = {
    "never": [],
    "every_step": ["torch.cuda.empty_cache()"],
    "every_step_with_del": ["torch.cuda.empty_cache()  # the batch on the device is gone by now"],
}

_SCALED_APPLY = Template("""
def apply_gradients():
    if clip_grad is not None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, clip_grad$foreach)
    scaler.step(optimizer)
    scaler.update()
""")

_INFER_STEP = Template('''
def infer_step(model):
    """A callable ``step(batch) -> output``. A batch is a tensor, a tuple of inputs, or a dict of keyword arguments."""
    device = next(model.parameters()).device
    model.eval()

    def run(batch):
$forward

$last
''')

_FORWARD = """
args, kwargs = _arguments(model, batch)
return model(*args, **kwargs)
"""

_EAGER = """
def step(batch):
    return run(_to_device(batch, device))
"""

_MARKED_EAGER = """
def step(batch):
    if device.type == "cuda":
        torch.compiler.cudagraph_mark_step_begin()
    return run(_to_device(batch, device))
"""

_GRAPHED_TRAIN = """
# A learning rate in a plain number would be frozen into the graph: then the update stays outside.
update_inside = all(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups)

def captured(batch):
    loss = compute_loss(batch)
    loss.backward()
    if update_inside:
        apply_gradients()
    return loss.detach()

def after_replay():
    if not update_inside:
        apply_gradients()

step = _graphed(device, run, captured, after_replay, parameters)
"""

_GRAPHED_INFER = """
step = _graphed(device, run, run, lambda: None, [])
"""

_TAKES_MODEL = '''
def _takes_model(loss_fn):
    """Whether a loss is ``loss_fn(model, batch)``: its first argument is called so, or its second ``batch``."""
    if loss_fn is None or isinstance(loss_fn, torch.nn.Module):
        return False
    try:
        names = list(inspect.signature(loss_fn).parameters)
    except (TypeError, ValueError):
        return False
    return names[:1] in (["model"], ["net"], ["network"], ["module"]) or names[1:2] == ["batch"]
'''

_SPLIT = '''
def _split(batch):
    """A batch as positional arguments, keyword arguments and target."""
    if isinstance(batch, Mapping):
        name = next((name for name in ("labels", "label", "targets", "target", "y") if name in batch), None)
        kwargs = {key: value for key, value in batch.items() if key != name}
        return (), kwargs, batch[name] if name is not None else None
    if isinstance(batch, (list, tuple)):
        *args, target = batch
        return tuple(args) or (target,), {}, target
    return (batch,), {}, batch
'''

_ARGUMENTS = '''
def _arguments(model, batch):
    """A batch as the model's positional and keyword arguments; a target behind the inputs is left out."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if not isinstance(batch, (list, tuple)):
        return (batch,), {}
    parameters = inspect.signature(model.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return tuple(batch), {}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(parameter.default is parameter.empty for parameter in positional)
    return tuple(batch[: max(1, required)]), {}
'''

_TO_DEVICE = '''
def _to_device(batch, device):
    """The batch with its tensors on the device."""
    return _map(lambda tensor: tensor.to($arguments), batch)
'''

_TO_DEVICE_IN_FORMAT = '''
def _to_device(batch, device):
    """The batch with its tensors on the device, in the memory format of the model."""

    def move(tensor):
        if tensor.dim() == $rank:
            return tensor.to($arguments, memory_format=torch.$format)
        return tensor.to($arguments)

    return _map(move, batch)
'''

_TO_DEVICE_AS = '''
def _to_device(batch, device):
    """The batch with its tensors on the device, and its floating-point ones in the type of the weights."""

    def move(tensor):
$move
        return tensor.to(torch.$dtype) if tensor.is_floating_point() else tensor

    return _map(move, batch)
'''

_MOVE = "tensor = tensor.to($arguments)"

_MOVE_IN_FORMAT = """\
layout = torch.$format if tensor.dim() == $rank else torch.preserve_format
tensor = tensor.to($arguments, memory_format=layout)"""

_ONLY_ATTENTION = '''
def _attention():
    """A context in which scaled_dot_product_attention uses one kernel only."""
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.$backend)
'''

_MAP = '''
def _map(function, batch):
    """The batch with ``function`` applied to every tensor in it."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: _map(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map(function, value) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_map(function, value) for value in batch)
    return batch
'''

_GRAPHED = '''
def _graphed(device, run, captured, after_replay, parameters):
    """A step that is captured in a CUDA graph on its fourth call and replayed from then on.

    The first three calls run eagerly on a side stream, and are steps like any other. A batch of another shape, such
    as a short last one, runs eagerly too. See "CUDA Graphs" in PyTorch's notes on CUDA semantics.
    """
    if device.type != "cuda":
        return lambda batch: run(_to_device(batch, device))
    stream = torch.cuda.Stream(device)
    graph = static_batch = static_result = shapes = None
    calls = 0

    def tensors(batch):
        found = []
        _map(found.append, batch)
        return found

    def shapes_of(batch):
        return [(tensor.shape, tensor.dtype) for tensor in tensors(batch)]

    def run_aside(batch):
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        # The graph writes into the gradients that it was captured with: an eager step must not replace them.
        gradients = [parameter.grad for parameter in parameters]
        with torch.cuda.stream(stream):
            result = run(batch)
        if graph is not None:
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient
        current.wait_stream(stream)
        return result

    def capture(batch):
        nonlocal graph, static_batch, static_result
        static_batch = _map(torch.clone, batch)
        for parameter in parameters:
            parameter.grad = None
        torch.cuda.synchronize(device)
        recording = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recording, capture_error_mode="thread_local"):
            static_result = captured(static_batch)
        graph = recording

    def step(batch):
        nonlocal calls, shapes
        if graph is not None and shapes_of(batch) == shapes:
            for destination, source in zip(tensors(static_batch), tensors(batch)):
                if source.dtype != destination.dtype:
                    source = source.to(device, non_blocking=True)  # converted there, not on the host
                destination.copy_(source, non_blocking=True)
        else:
            calls += 1
            moved = _to_device(batch, device)
            if graph is not None or calls <= 3:
                return run_aside(moved)
            capture(moved)
            shapes = shapes_of(batch)
        graph.replay()
        after_replay()
        # The next replay overwrites the graph's own result.
        return _map(torch.clone, static_result)

    return step
'''
