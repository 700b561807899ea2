"""A ``build()`` to complete, filled in from a watched script. Run as a program of its own by ``init``."""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from advisor.errors import AdvisorError, TargetError
from advisor.runtime.loop import describe
from advisor.target.scripts.body import FoundLoop, NoBodyError, position_in, training_loop
from advisor.target.scripts.plain import loss_of, workload_of
from advisor.target.scripts.positions import COUNTED
from advisor.target.scripts.run import package_of, watched
from advisor.target.scripts.seen import LossCall, Seen, Where

_HEAD = '''"""What perf-advisor measures of {script}, as far as it was seen: complete the lines that are marked TODO.

Then type: perf-advisor {file}
"""

import torch
'''
# Options of an optimizer that are shown where they are set.
_SHOWN_IF_SET = ("dampening", "maximize", "centered", "fused", "foreach", "capturable")
_SHOWN_PARAMETERS = ("lr", "momentum", "betas", "weight_decay", "eps", "alpha", "rho", "nesterov", "amsgrad")


def main(script: str, file: str, result: str) -> None:
    """Watch ``script``, whose arguments are in ``sys.argv``, and write the text of ``file``, or why not, as JSON."""
    try:
        outcome = {"text": draft_of(script, file)}
    except AdvisorError as error:
        outcome = {"message": error.message, "hint": error.hint, "details": error.details}
    Path(result).write_text(json.dumps(outcome), encoding="utf-8")


def draft_of(script: str, file: str) -> str:
    """The text of the file. Raises TargetError where running the script fails."""
    from advisor.target.entrypoint import in_user_code

    seen = in_user_code(f"running {script}", lambda: watched(script, str(Path.cwd())))
    models = seen.models
    lines = [*_models(seen, models), *_data(seen), *_optimizers(seen)]
    lines += _plain(seen) if _is_plain(seen) else _own_step(seen)
    body = textwrap.indent("\n".join(lines), "    ")
    head = _HEAD.format(script=script, file=file)
    return f"{head}{_imports(script, models)}\n\ndef build():\n{body}\n"


def _imports(script: str, models: list[nn.Module]) -> str:
    """Imports of the models' classes; of a script that runs when it is imported, where to take them from."""
    path = Path(script).resolve()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = ["import advisor"]
    for kind in dict.fromkeys(type(model) for model in models):
        if kind.__module__ != "__main__":
            lines.append(f"from {kind.__module__} import {kind.__qualname__}")
        elif _is_guarded(tree):
            lines.append(f"from {'.'.join((*package_of(path, tree), path.stem))} import {kind.__qualname__}")
        else:
            lines.append(f"# TODO: copy the class {kind.__qualname__} to here: importing {script} would run it")
    return "\n".join(lines) + "\n"


def _is_guarded(tree: ast.Module) -> bool:
    """Whether a script does its work under ``if __name__ == "__main__"``."""
    return any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body)


def _models(seen: Seen, models: list[nn.Module]) -> Iterator[str]:
    if not models:
        yield "model = ...  # TODO: the model; the script called none that an optimizer has"
    for number, model in enumerate(models):
        yield from _as_written(seen, model)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        made = f"{_name('model', number)} = {type(model).__qualname__}(...)"
        yield f"{made}  # TODO: arguments; {parameters:,} parameters"


def _data(seen: Seen) -> Iterator[str]:
    if seen.loader is None:
        yield "data = ...  # TODO: one batch, a loader, or any iterable of batches"
        return
    yield from _as_written(seen, seen.loader)
    loader = seen.loader
    options = f"batch_size={loader.batch_size}, num_workers={loader.num_workers}"
    yield f"dataset = ...  # TODO: of class {type(loader.dataset).__name__}; a batch is {describe(seen.batch)}"
    yield f"data = torch.utils.data.DataLoader(dataset, {options})  # TODO: shuffle, collate_fn"


def _optimizers(seen: Seen) -> Iterator[str]:
    for number, optimizer in enumerate(seen.optimizers):
        yield from _as_written(seen, optimizer)
        yield f"{_name('optimizer', number)} = {_optimizer_call(optimizer, _name('model', number))}"


def _optimizer_call(optimizer: Optimizer, model: str) -> str:
    kind = type(optimizer)
    module = "torch.optim" if kind.__module__.startswith("torch.optim") else kind.__module__
    given = {name: optimizer.defaults[name] for name in _SHOWN_PARAMETERS if name in optimizer.defaults}
    given |= {name: optimizer.defaults[name] for name in _SHOWN_IF_SET if optimizer.defaults.get(name)}
    options = ", ".join(f"{name}={value!r}" for name, value in given.items())
    groups = len(optimizer.param_groups)
    complete = "" if groups == 1 else f"  # TODO: {groups} groups of parameters, each with options of its own"
    return f"{module}.{kind.__name__}({model}.parameters(), {options}){complete}"


def _is_plain(seen: Seen) -> bool:
    try:
        return bool(seen.updates) and getattr(workload_of(seen), "step", None) is None
    except (NoBodyError, TargetError):
        return False


def _plain(seen: Seen) -> Iterator[str]:
    call = loss_of(seen)
    if call is None:
        yield "loss = None  # the model computes it"
    else:
        yield f"loss = {_loss(call)}"
    clip = f", clip_grad={seen.clip_norm}" if seen.clip_norm else ""
    yield f"return advisor.Workload(model=model, data=data, loss=loss, optimizer=optimizer{clip})"


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
        if not _is_simple(value) or value != parameter.default:
            found[parameter.name] = value
    return found


def _options(options: dict[str, Any]) -> tuple[str, str]:
    """Options as arguments of a call, with an ellipsis for values that cannot be written; and a remark, if any."""
    given = ", ".join(f"{name}={repr(value) if _is_simple(value) else '...'}" for name, value in options.items())
    return given, "" if all(map(_is_simple, options.values())) else "  # TODO: ..."


def _is_simple(value: object) -> bool:
    return isinstance(value, str | int | float | None)


def _own_step(seen: Seen) -> Iterator[str]:
    """A step of one's own: the body of the loop, where one was found."""
    yield ""
    yield "def step(batch):"
    try:
        loop = training_loop(seen)
    except NoBodyError:
        yield "    loss = ...  # TODO: all that a step does, from the batch to the update"
    else:
        yield f"    # the loop at {Path(loop.file).name}:{loop.statement.lineno}"
        yield from textwrap.indent(_body_text(loop, seen), "    ").splitlines()
    yield "    return loss  # TODO: the loss by its name above"
    yield ""
    models = ", ".join(_name("model", number) for number in range(max(1, len(seen.models))))
    optimizers = ", ".join(_name("optimizer", number) for number in range(len(seen.optimizers)))
    yield f"return advisor.Workload(step=step, models=[{models}], optimizers=[{optimizers}], data=data)"


def _body_text(loop: FoundLoop, seen: Seen) -> str:
    lines = linecache.getlines(loop.file)
    body = loop.statement.body
    text = textwrap.dedent("".join(lines[body[0].lineno - 1 : body[-1].end_lineno]))
    target = ast.unparse(loop.statement.target) if isinstance(loop.statement, ast.For) else "_"
    item = "(0, batch)" if position_in(loop, seen) == COUNTED else "batch"
    return f"for {target} in [{item}]:  # TODO: names that the loop uses\n{textwrap.indent(text, '    ')}"


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
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
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
