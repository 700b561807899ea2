"""Turn a target string into a normalised workload. This runs the user's code, so only in the trial process."""

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import pickle
import re
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any, TypeVar

from torch import autograd, nn
from torch.optim import optimizer as hooks

from advisor.errors import TargetError
from advisor.files.paths import DEMO, check_target, is_file, is_library, is_pythons_own
from advisor.process.logs import last_printed
from advisor.records import TargetSpec
from advisor.records.trials import WORKLOAD_SUFFIX
from advisor.step.batch import tensors_of
from advisor.step.compile import Models, as_prepared
from advisor.step.loss import LossCall
from advisor.step.optimizer import optimizers_in
from advisor.workloads.hubs.contract import named
from advisor.workloads.loop import Loop, describe
from advisor.workloads.normalise import normalise
from advisor.workloads.places import TORCH, BuildWatch
from advisor.workloads.scripts import is_script
from advisor.workloads.scripts.files import run_in_place
from advisor.workloads.scripts.run import script_workload

T = TypeVar("T")

DEFAULT_ATTRIBUTE = "build"
_FRAMES_SHOWN, _NAMES_SHOWN = 3, 20
_LONGEST_SAID, _LONGEST_LAYER = 300, 80
# The functions that run a module, the loss and the backward pass.
_LOSS, _BACKWARD = LossCall.of_output.__code__, autograd.backward.__code__
_RUN = (nn.Module.__call__.__code__, _LOSS, _BACKWARD)
# The line of a traceback that names the exception: ``torch._dynamo.exc.TorchRuntimeError: ...``.
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit|Unsupported|Warning)\b")
# The first lines of tracebacks in messages: the message of an error from another thread contains a traceback.
_TRACEBACKS = ("Original Traceback", "Traceback (most recent call last)", "Traceback of TorchScript")
# The errors for an unknown host, and for a host that refuses. Libraries wrap them in errors of their own.
_NO_NETWORK = (socket.gaierror, ConnectionRefusedError)
_EXITS = "Remove the exit that the lines below show; or, in a module, move it under `if __name__ == '__main__':`."
_PARSES = "See the lines below. Give the required arguments after --, as in `perf-advisor train.py -- --lr 0.1`."
_BY_NAME = "Correct the options after --, as in `-- num_classes=10`. hf: also takes a folder with a config.json."
_OFFLINE = "Your code asks the network, which does not answer here. Let it read files that are on this machine."
_NO_GPU = "This machine has no CUDA GPU. Remove .cuda(), or write .to(device); model and batch are moved for you."
_RANKS = (
    "Use --gpus N: perf-advisor then starts the ranks (a build() returns the plain model and loader). Or measure one "
    "rank: `export RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=0`."
)
# Hints by texts in the messages of PyTorch and of its downloads.
_HINTS = {
    "<urlopen error": _OFFLINE,
    "Found no NVIDIA driver": _NO_GPU,
    "Torch not compiled with CUDA enabled": _NO_GPU,
    "No CUDA GPUs are available": _NO_GPU,
    "to be on the same device": "Models, batches and the modules of a loss are moved for you. Move your other tensors "
    "yourself, as in weight.to(output.device), or make them buffers of a module.",
    **dict.fromkeys(("'RANK'", "'LOCAL_RANK'", "'WORLD_SIZE'", "env:// rendezvous"), _RANKS),
}
_MOST_UPDATES = 100  # weight updates while a module is imported; with more, the import is a training run


def load_target(spec: TargetSpec) -> Loop:
    """Import the target, call it, and normalise its result. Raises TargetError with a hint on what to do."""
    run_in_place(spec.read_as)
    watch = BuildWatch()
    value = _value(spec, watch)
    loop = in_user_code("normalising the workload", lambda: normalise(value, spec))
    models = [*loop.model] if isinstance(loop.model, Models) else [loop.model]
    loop.places = loop.places or watch.places(models, optimizers_in(loop.optimizer), loop.loader)
    return loop


def _value(spec: TargetSpec, watch: BuildWatch) -> Any:
    """Return the target's value: a model that a library builds by its name, or the result of the user's code."""
    check_target(spec.target, spec.directory)
    if (by_name := named(spec.target)) is not None:
        adapter, name = by_name
        return in_user_code(f"building {spec.target}", lambda: adapter.load(name, spec), _BY_NAME)
    if spec.target.endswith(WORKLOAD_SUFFIX):
        sys.path.insert(0, spec.directory)  # for the modules of advisor.tune's caller
        found = load_function(spec.target, spec.directory)
        what = getattr(found, "__name__", "the workload")
        return in_user_code(what, lambda: _build(found, spec, what))
    module, attribute = parse_target(spec.target)
    file = Path(spec.directory, *module.split(".")).with_suffix(".py")  # known before the import
    sys.argv = [str(file) if not _is_file(module) and is_file(file) else module, *spec.arguments]
    if is_script(spec.target, spec.directory, DEFAULT_ATTRIBUTE):
        return in_user_code(f"running {spec.target}", lambda: script_workload(spec.target, spec.directory))
    imported, what = _import(module, spec.directory), f"{attribute} in {module}"
    found = in_user_code(what, lambda: _attribute(imported, module, attribute))
    with watch.watching(found):
        return in_user_code(what, lambda: _build(found, spec, attribute))


def load_function(name: str, directory: str) -> Any:
    """Return the object that ``module:attr`` or ``file.py:attr`` names, or a pickled one. Raises TargetError."""
    if name.endswith(WORKLOAD_SUFFIX):
        return in_user_code("reading what was handed over", lambda: pickle.loads(Path(name).read_bytes()))  # noqa: S301
    module_name, attribute = parse_target(name)
    path = Path(directory, module_name).resolve()
    module = sys.modules.get(path.stem)
    if not module or Path(getattr(module, "__file__", None) or "").resolve() != path:  # it may be imported already
        module = _import(module_name, directory)
    return in_user_code(name, lambda: _attribute(module, module_name, attribute))


def _is_file(module: str) -> bool:
    return module.endswith(".py") or "/" in module


def parse_target(target: str) -> tuple[str, str]:
    """Split ``module:attr`` or ``file.py:attr`` into its two parts; without ``:attr`` the attribute is ``build``."""
    if target == DEMO:
        return "advisor.workloads.demo", DEFAULT_ATTRIBUTE
    module, separator, attribute = target.rpartition(":")
    if not separator:
        module, attribute = target, DEFAULT_ATTRIBUTE
    if not module or not attribute or (module.startswith(".") and not _is_file(module)):
        raise TargetError(
            f"{target!r} is not a target.",
            "Give module:attr, path/file.py:attr, timm:NAME, hf:NAME, torchvision:NAME or demo; e.g. mymodel:build.",
        )
    return module, attribute


def in_user_code(what: str, call: Callable[[], T], usual_hint: str = "Fix the lines below, then run again.") -> T:
    """Return ``call()``. Any exception, even ``SystemExit``, becomes a TargetError with the user's last frames."""
    try:
        return call()
    except (TargetError, KeyboardInterrupt):
        raise
    except SystemExit as error:  # a command line's parser prints its usage and the reason
        printed = last_printed().rstrip()
        hint = _PARSES if error.code == 2 and "usage:" in printed.lower() else _EXITS
        shown = filter(None, (printed, user_frames(error)))
        raise TargetError(f"{what} called sys.exit({error.code!r}).", hint, "\n".join(shown)) from error
    except BaseException as error:
        problem = f"{what} failed: {one_line(error)}"
        raise TargetError(problem, hint_for(error, usual_hint), user_frames(error)) from error


def hint_for(error: BaseException, usual: str) -> str:
    """The hint for an error in the user's code: what this machine lacks, if the error shows that; else ``usual``."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        return f"Install {top} beside perf-advisor, or set PYTHONPATH to the folder that {top} is in; then run again."
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, _NO_NETWORK):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return _OFFLINE
    return next((hint for text, hint in _HINTS.items() if text in message_of(error)), usual)


def message_of(error: BaseException) -> str:
    """The message of an exception, without terminal colours; empty if its ``__str__`` fails."""
    try:
        return re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    except Exception:  # ``__str__`` may be the user's code
        return ""


def one_line(error: BaseException) -> str:
    """An exception as one line: its type and its message, cut to a readable length.

    A CUDA error is cut to its first line, without the advice. If a message contains the traceback of another thread,
    process or language (PyTorch's replicas, its compiler, TorchScript), the line is the error in that traceback.
    """
    lines, name = [line.strip() for line in message_of(error).strip().splitlines()], type(error).__name__
    if any(line.startswith(_TRACEBACKS) for line in lines):
        lines = [next((line for line in reversed(lines) if _EXCEPTION.match(line)), lines[-1])]
    elif lines and lines[0].startswith("CUDA error: "):
        lines = lines[:1]
    said = " ".join(lines)
    text = shorten(said, _LONGEST_SAID, placeholder=" …") if " " in said[:_LONGEST_SAID] else said[:_LONGEST_SAID]
    return text if text.partition(":")[0].endswith(name) else ": ".join(filter(None, (name, text)))


def user_frames(error: BaseException) -> str:
    """The layer or loss that failed, and the last frames of the user's code, or else of libraries except PyTorch."""
    # A compiler error holds the frames of the code that was being compiled.
    frames = [*traceback.extract_tb(error.__traceback__), *(getattr(error, "real_stack", None) or ())]
    inner = [one for one in frames if is_pythons_own(one.filename) or any(part in one.filename for part in TORCH)]
    own = [one for one in frames if not is_library(one.filename)] or [one for one in frames if one not in inner]
    lines = [one_line(error)] if own else []
    if isinstance(error, SyntaxError) and error.filename and not is_library(error.filename):
        lines = traceback.format_exception_only(error)  # no frame shows a line that does not parse
    return "".join((_running(error), *traceback.format_list(own[-_FRAMES_SHOWN:]), *lines)).rstrip()


def _running(error: BaseException) -> str:
    """Name the innermost module or the loss of a traceback, with its input shapes, in one line; empty if unknown."""
    with contextlib.suppress(Exception):  # the traceback has neither, or an object of the user's fails
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        code, values = next((one.f_code, one.f_locals) for one in reversed(frames) if one.f_code in _RUN)
        if code is _BACKWARD:
            return "The backward pass failed.\n"
        if code is _LOSS:
            what, given = "The loss", (values["output"], values["target"] if values["self"].takes else ())
        else:
            layer, given = as_prepared(values["self"]), (values["args"], values["kwargs"])
            around = [as_prepared(one) for each in frames if isinstance(one := each.f_locals.get("self"), nn.Module)]
            path, whole = next((path, one) for one in around for path, part in one.named_modules() if part is layer)
            name = f"{type(layer).__name__}({shorten(layer.extra_repr(), _LONGEST_LAYER)})"
            what = f"Layer {path!r} of {type(whole).__name__}, {name}," if path else f"The module {name}"
        return f"{what} got {'no tensor' if next(tensors_of(given), None) is None else describe(given)}.\n"
    return ""


def _import(module: str, directory: str) -> ModuleType:
    """Import a module or a file; a file can import the files in its folder. Raises TargetError."""
    path, folders = Path(directory, module), [directory]
    if _is_file(module):
        path = path.resolve()
        folders.append(str(path.parent))
    for folder in folders:
        if folder not in sys.path:
            sys.path.insert(0, folder)
    with refusing_to_train(module):
        if not _is_file(module):
            return in_user_code(f"importing {module}", lambda: _import_module(module))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or (loader := spec.loader) is None:
            raise TargetError(f"{module} is not a Python file.", "Give a file whose name ends in .py.")
        made = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = made  # DataLoader workers and pickle find the user's classes by this name
        in_user_code(f"importing {module}", lambda: loader.exec_module(made))
        return made


def _import_module(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise TargetError(
            f"there is no module {module!r}.",
            "Run from the folder that holds it, install it, or give path/file.py:attr. A model by name is timm:NAME, "
            "hf:NAME, torchvision:NAME or ultralytics:NAME.",
        ) from error


def _attribute(module: ModuleType, module_name: str, attribute: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            here = module.__name__  # objects of other modules were imported
            public = {name: one for name, one in vars(module).items() if name[0] != "_" and not inspect.ismodule(one)}
            own = sorted(name for name, one in public.items() if getattr(one, "__module__", here) == here)
            shown = ", ".join(own[:_NAMES_SHOWN]) or "nothing public"
            raise TargetError(f"{module_name} has no {attribute!r}.", f"It defines: {shown}.")
        found = getattr(found, part)
    return found


def _build(found: Any, spec: TargetSpec, attribute: str) -> Any:
    """Return a target that is not callable, or a module, as it is. Call any other, with ``config``."""
    if isinstance(found, nn.Module) or not callable(found):
        return found
    parameters = inspect.signature(found).parameters
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [name for name, p in parameters.items() if p.default is p.empty and p.kind not in any_number]
    config = "config"
    if spec.config is not None and len(required) == 1 and config not in parameters:
        (config,) = required  # the parameter may be named cfg or args
    if others := [name for name in required if name != config]:
        raise TargetError(
            f"{attribute} needs the arguments {', '.join(others)}.",
            "The target may require one argument at most: config (the parsed --config FILE). In place of a class, name "
            "an instance: mymodel.py:model.",
        )
    if required and spec.config is None:
        raise TargetError(f"{attribute} needs a config.", "Give it with --config FILE.")
    return found() if config not in parameters or spec.config is None else found(**{config: spec.config})


@contextlib.contextmanager
def refusing_to_train(module: str) -> Iterator[None]:
    """Raise TargetError inside this context after too many optimizer steps, since the import trains then."""
    updates = itertools.count(1)

    def count(*_: Any) -> None:
        if next(updates) > _MOST_UPDATES:
            script = module if module.endswith(".py") else f"{module.replace('.', '/')}.py"
            raise TargetError(
                f"{module} trains while it is imported.",
                f"Move its loop under `if __name__ == '__main__':`. Or measure the script as it is: `perf-advisor "
                f"{script}`, without a name after it; the script must define no build().",
            )

    with hooks.register_optimizer_step_post_hook(count):
        yield
