"""A ``build()`` to complete, filled in from a watched script. Run as a program of its own by ``init``."""

import ast
import inspect
import json
import linecache
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import RandomSampler, SequentialSampler, default_collate, default_convert

from advisor.errors import AdvisorError, TargetError
from advisor.target.loop import describe
from advisor.target.scripts.body import FoundLoop, NoBodyError, position_in, training_loop
from advisor.target.scripts.draft_names import is_literal, lines_for, names_used
from advisor.target.scripts.loops import tree_of
from advisor.target.scripts.plain import loss_of, workload_of
from advisor.target.scripts.positions import COUNTED, is_count
from advisor.target.scripts.run import check_seen, package_of, watched
from advisor.target.scripts.seen import LossCall, Seen, Where
from advisor.target.scripts.written import WrittenLoss

_HEAD = '''"""What perf-advisor measures of {script}, as far as it was seen: complete the lines that are marked TODO.

Then type: perf-advisor {file}
"""

'''
# Options of an optimizer that are shown where they are set.
_SHOWN_IF_SET = ("dampening", "maximize", "centered", "fused", "foreach", "capturable")
# Options of a loader that are shown where they are on.
_SET_OF_LOADERS = ("drop_last", "pin_memory", "persistent_workers")
_SHOWN_PARAMETERS = ("lr", "momentum", "betas", "weight_decay", "eps", "alpha", "rho", "nesterov", "amsgrad")


def main(script: str, file: str, result: str) -> None:
    """Watch ``script``, whose arguments are in ``sys.argv``, and write the text of ``file``, or why not, as JSON."""
    try:
        text, is_measurable = draft_of(script, file)
        outcome = {"text": text, "measurable": is_measurable}
    except AdvisorError as error:
        outcome = {"message": error.message, "hint": error.hint, "details": error.details}
    Path(result).write_text(json.dumps(outcome), encoding="utf-8")


def draft_of(script: str, file: str) -> tuple[str, bool]:
    """The text of ``file``, and whether ``script`` can be measured as it is. Raises TargetError where it fails."""
    from advisor.target.entrypoint import in_user_code

    seen = in_user_code(f"running {script}", lambda: watched(script, str(Path.cwd())))
    if seen.starts_processes and not seen.calls and seen.fitted is None:
        check_seen(script, seen)
    is_measurable = _workload(seen) is not None  # which also finds the optimizers of a round's other updates
    source = _importable(script)
    parts = _fitted_parts(seen) or _made(seen)
    lines = [*_fitted(seen)] if seen.fitted is not None else [*_models(seen), *_rest(seen, source)]
    imports = [*_imports(script, source, parts), *filter(_is_import, lines)]
    head = _HEAD.format(script=script, file=file) + "\n".join(dict.fromkeys(imports))
    body = textwrap.indent("\n".join(line for line in lines if not _is_import(line)), "    ")
    return f"{head}\n\n\ndef build():\n{body}\n", is_measurable


def _is_import(line: str) -> bool:
    return line.startswith(("import ", "from "))


def _rest(seen: Seen, source: str) -> Iterator[str]:
    """Yield the lines after the models: data, optimizers and the step, or the data alone where a script predicts."""
    workload = _workload(seen)
    if workload is not None and workload.mode == "infer":
        yield from _data(seen) if workload.data is seen.loader else _inputs(workload.data)
        step = ""
        if seen.generates is not None and workload.step is not None:
            options = "".join(f", {name}={value!r}" for name, value in seen.generates.options.items())
            step = f", step=lambda batch: model.generate(**batch{options})"
        yield f'return advisor.Workload(model=model.eval(), data=data, mode="infer"{step})'
        return
    yield from _data(seen)
    yield from _optimizers(seen)
    if workload is not None and workload.step is None and not isinstance(workload.loss, WrittenLoss):
        yield from _plain(seen, workload.loss)
    else:
        yield from _own_step(seen, source)


def _workload(seen: Seen) -> Any:
    """The workload that was seen; None where the loop can be neither taken apart nor run by itself."""
    try:
        return workload_of(seen)
    except (NoBodyError, TargetError):
        return None


def _importable(script: str) -> str:
    """The module that a script is imported as; empty for one that runs when it is imported."""
    path = Path(script).resolve()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return ".".join((*package_of(path, tree), path.stem)) if _is_guarded(tree) else ""


def _imports(script: str, source: str, parts: Sequence[Any]) -> list[str]:
    """Imports of the parts' classes; of a script that runs when it is imported, where to take them from."""
    lines = ["import torch"] if isinstance(parts, tuple) else ["import torch", "import advisor"]
    for kind in dict.fromkeys(map(type, parts)):
        if kind.__module__ != "__main__":
            lines.append(f"from {kind.__module__} import {kind.__qualname__}")
        elif source:
            lines.append(f"from {source} import {kind.__qualname__}")
        else:
            lines.append(f"# TODO: copy the class {kind.__qualname__} to here: importing {script} would run it")
    return lines


def _is_guarded(tree: ast.Module) -> bool:
    """Whether a script does its work under ``if __name__ == "__main__"``."""
    return any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body)


def _fitted_parts(seen: Seen) -> tuple[Any, ...]:
    """The objects that a library's trainer was given, itself among them; empty without one."""
    if seen.fitted is None:
        return ()
    return seen.fitted if isinstance(seen.fitted, tuple) else (seen.fitted,)


def _fitted(seen: Seen) -> Iterator[str]:
    """Lines that return what a library trains: its own training step is measured."""
    parts = _fitted_parts(seen)
    for part in parts:
        yield from _as_written(seen, part)
        yield f"{type(part).__name__.lower()} = {type(part).__qualname__}(...)  # TODO: arguments"
    yield f"return {', '.join(type(part).__name__.lower() for part in parts)}"


def _models(seen: Seen) -> Iterator[str]:
    if not seen.models:
        yield "model = ...  # TODO: the model; the script called none that an optimizer has"
    for number, model in enumerate(_made(seen)):
        yield from _as_written(seen, model)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        made = f"{_name('model', number)} = {type(model).__qualname__}(...)"
        yield f"{made}  # TODO: arguments; {parameters:,} parameters"


def _made(seen: Seen) -> list[nn.Module]:
    """The models that a draft makes: those called, or the whole that they are parts of, each once."""
    return list({id(one): one for one in (_whole(seen, model) for model in seen.models)}.values())


def _whole(seen: Seen, model: nn.Module) -> nn.Module:
    """The largest module of the script's that a model is a part of, where one optimizer trains all of it."""
    trained = [{id(p) for group in one.param_groups for p in group["params"]} for one in seen.optimizers]
    frames = (where.frame for where in seen.frames if where.is_users)
    held = (value for frame in frames for value in _held(frame))
    wholes = [
        value
        for value in held
        if isinstance(value, nn.Module)
        and any(part is model for part in value.modules())
        and any({id(p) for p in value.parameters() if p.requires_grad} <= ids for ids in trained)
    ]
    return max([model, *wholes], key=lambda whole: len(list(whole.modules())))


def _held(frame: FrameType) -> Iterator[Any]:
    """The objects that a frame's names hold, and those that its ``self`` does."""
    yield from ({**frame.f_globals, **frame.f_locals}).values()
    yield from vars(frame.f_locals["self"]).values() if hasattr(frame.f_locals.get("self"), "__dict__") else ()


def _called(seen: Seen) -> list[str]:
    """The models that were called, by the draft's names of those that they are parts of."""
    names = {id(whole): _name("model", number) for number, whole in enumerate(_made(seen))}
    found = []
    for model in seen.models:
        whole = _whole(seen, model)
        path = next(path for path, part in whole.named_modules() if part is model)
        steps = (f"[{step}]" if step.isdigit() else f".{step}" for step in path.split(".") if step)
        found.append(names[id(whole)] + "".join(steps))
    return found or ["model"]


def _inputs(batch: Any) -> Iterator[str]:
    yield f"data = ...  # TODO: one batch, as the model's inputs: {describe(batch)}"


def _data(seen: Seen) -> Iterator[str]:
    if seen.loader is None:
        yield "data = ...  # TODO: one batch, a loader, or any iterable of batches"
        return
    yield from _as_written(seen, seen.loader)
    loader = seen.loader
    yield f"dataset = ...  # TODO: of class {type(loader.dataset).__name__}; a batch is {describe(seen.batch)}"
    options, todo = _loader_options(loader)
    yield f"data = torch.utils.data.DataLoader(dataset, {options}){todo}"


def _loader_options(loader: Any) -> tuple[str, str]:
    """The options of a loader as arguments of a call, and a remark on those that cannot be written, if any."""
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    given = [f"batch_size={size}", f"num_workers={loader.num_workers}"]
    # A loader that was made with a batch_sampler, as Accelerate's are, has another sampler that it does not use.
    sampler = getattr(loader.batch_sampler, "sampler", None) or getattr(loader, "sampler", None)
    given += ["shuffle=True"] if type(sampler) is RandomSampler else []
    given += [f"{name}=True" for name in _SET_OF_LOADERS if getattr(loader, name, False)]
    todo = [] if type(sampler) in (RandomSampler, SequentialSampler) else [f"sampler, a {type(sampler).__name__}"]
    if loader.collate_fn not in (default_collate, default_convert):
        given.append("collate_fn=...")
        todo.append(getattr(loader.collate_fn, "__qualname__", type(loader.collate_fn).__name__))
    return ", ".join(given), f"  # TODO: {', '.join(todo)}" if todo else ""


def _optimizers(seen: Seen) -> Iterator[str]:
    for number, optimizer in enumerate(seen.optimizers):
        yield from _as_written(seen, optimizer)
        yield f"{_name('optimizer', number)} = {_optimizer_call(optimizer, _trained_by(optimizer, seen))}"


def _trained_by(optimizer: Optimizer, seen: Seen) -> str:
    """The parameters of an optimizer, by the draft's names of the models that they are of."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    models = [
        f"{_name('model', number)}.parameters()"
        for number, model in enumerate(_made(seen))
        if any(id(parameter) in trained for parameter in model.parameters())
    ]
    return models[0] if len(models) == 1 else f"[{', '.join(f'*{one}' for one in models)}]"


def _optimizer_call(optimizer: Optimizer, parameters: str) -> str:
    kind = type(optimizer)
    module = "torch.optim" if kind.__module__.startswith("torch.optim") else kind.__module__
    given = {name: optimizer.defaults[name] for name in _SHOWN_PARAMETERS if name in optimizer.defaults}
    given |= {name: optimizer.defaults[name] for name in _SHOWN_IF_SET if optimizer.defaults.get(name)}
    options = ", ".join(f"{name}={value!r}" for name, value in given.items())
    groups = len(optimizer.param_groups)
    complete = "" if groups == 1 else f"  # TODO: {groups} groups of parameters, each with options of its own"
    return f"{module}.{kind.__name__}({parameters}, {options}){complete}"


def _plain(seen: Seen, own_loss: Any) -> Iterator[str]:
    call = loss_of(seen)
    if call is None:
        yield f"loss = {own_loss}  # the model computes it"
    else:
        yield f"loss = {_loss(call)}"
    clip = f", clip_grad={seen.clip_norm}" if seen.clip_norm else ""
    yield f"return advisor.Workload(model={_called(seen)[0]}, data=data, loss=loss, optimizer=optimizer{clip})"


def _loss(call: LossCall) -> str:
    """The loss as it was called; a placeholder for one of the script's own, and for tensors among its options."""
    function = call.function
    if not isinstance(function, nn.Module):
        name, todo = f"{function.__module__}.{function.__qualname__}", ""
    elif type(function).__module__.startswith("torch.nn"):
        given, todo = _options(_changed_options(function))
        name = f"torch.nn.{type(function).__name__}({given})"
    else:
        return f"...  # TODO: {function!r}"
    if call.kwargs:
        given, missing = _options(call.kwargs)
        name, todo = f"lambda output, target: {name}(output, target, {given})", todo or missing
    return name + todo


def _changed_options(loss: nn.Module) -> dict[str, Any]:
    """The options of one of PyTorch's losses that are not its defaults."""
    found = {}
    for parameter in inspect.signature(type(loss)).parameters.values():
        value = getattr(loss, parameter.name, parameter.default)
        if not is_literal(value) or value != parameter.default:
            found[parameter.name] = value
    return found


def _options(options: dict[str, Any]) -> tuple[str, str]:
    """Options as arguments of a call, with an ellipsis for values that cannot be written; and a remark, if any."""
    given = ", ".join(f"{name}={repr(value) if is_literal(value) else '...'}" for name, value in options.items())
    return given, "" if all(map(is_literal, options.values())) else "  # TODO: ..."


def _own_step(seen: Seen, source: str) -> Iterator[str]:
    """A step of one's own: the body of the loop, where one was found."""
    try:
        loop = training_loop(seen)
    except NoBodyError:
        loss, step, lines = "", "step", ["    loss = ...  # TODO: all that a step does, from the batch to the update"]
        yield ""
    else:
        used = names_used(loop.statement.body, getattr(loop.statement, "target", None))
        step = "one_step" if "step" in used.needed else "step"
        yield from lines_for(used.needed, loop.names, _known(seen), source)
        yield ""
        lines = [f"    nonlocal {', '.join(used.bound_anew)}"] if used.bound_anew else []
        lines.append(f"    # the loop at {Path(loop.file).name}:{loop.statement.lineno}")
        lines += textwrap.indent(_body_text(loop, seen), "    ").splitlines()
        loss = _name_of_loss(loop.statement.body)
    yield f"def {step}(batch):"
    yield from lines
    yield f"    return {loss}" if loss else "    return loss  # TODO: the loss by its name above"
    yield ""
    models = ", ".join(_called(seen))
    optimizers = ", ".join(_name("optimizer", number) for number in range(len(seen.optimizers)))
    yield f"return advisor.Workload(step={step}, models=[{models}], optimizers=[{optimizers}], data=data)"


def _name_of_loss(body: Sequence[ast.stmt]) -> str:
    """The name that each round calls ``backward`` on, or gives to it; empty where it has none."""
    for statement in body:
        if isinstance(statement, ast.With | ast.For) and (name := _name_of_loss(statement.body)):
            return name
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            given = call.args[0] if call.args else call.func.value
            given = given.args[0] if isinstance(given, ast.Call) and given.args else given  # as scaler.scale(loss)
            return given.id if isinstance(given, ast.Name) else ""
    return ""


def _known(seen: Seen) -> dict[int, str]:
    """The draft's names by the id of what each holds."""
    known = dict(zip(map(id, seen.models), _called(seen), strict=False))
    known |= {id(model): _name("model", number) for number, model in enumerate(_made(seen))}
    known |= {id(one): _name("optimizer", number) for number, one in enumerate(seen.optimizers)}
    return known if seen.loader is None else known | {id(seen.loader): "data"}


def _body_text(loop: FoundLoop, seen: Seen) -> str:
    lines = [*linecache.getlines(loop.file)]
    body = loop.statement.body
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield):  # with it, the step would be a generator
            line, start = lines[node.lineno - 1], node.col_offset
            lines[node.lineno - 1] = f"{line[:start]}pass  # {line[start:]}"
    first, start = body[0].lineno - 1, body[0].col_offset
    lines[first] = " " * start + lines[first].encode()[start:].decode()  # a body on the line of its loop's head
    text = textwrap.dedent("".join(lines[first : body[-1].end_lineno]))
    target = ast.unparse(loop.statement.target) if isinstance(loop.statement, ast.For) else "_"
    counts = isinstance(loop.statement, ast.For) and is_count(loop.statement.iter)
    item = "1" if counts else "(0, batch)" if position_in(loop, seen) == COUNTED else "batch"
    return f"for {target} in [{item}]:\n{textwrap.indent(text, '    ')}"


def _as_written(seen: Seen, value: Any) -> Iterator[str]:
    """The line of the script that makes an object, as a comment; nothing where no name of the script's holds it."""
    for where in filter(lambda where: where.is_users, seen.frames):
        for name, held in {**where.frame.f_globals, **where.frame.f_locals}.items():
            if held is value and (found := _assignment(where, name)):
                yield found
                return


def _assignment(where: Where, name: str) -> str:
    """The first line of a frame's file that assigns to a name, as a comment; empty without one."""
    file = where.frame.f_code.co_filename
    for node in ast.walk(tree_of("".join(linecache.getlines(file)))):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return f"# {Path(file).name}:{node.lineno}: {linecache.getline(file, node.lineno).strip()}"  # type: ignore[attr-defined]
    return ""


def _name(kind: str, number: int) -> str:
    return kind if number == 0 else f"{kind}_{number + 1}"


if __name__ == "__main__":
    _script, _file, _result, *_arguments = sys.argv[1:]
    sys.argv = [_script, *_arguments]
    main(_script, _file, _result)
