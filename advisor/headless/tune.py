"""``advisor.tune``: runs a session from a notebook or a program, and returns its result as an object."""

from __future__ import annotations

import hashlib
import html
import multiprocessing.spawn
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from advisor.errors import UsageError
from advisor.experiment.request import DEFAULT_BUDGET_S, DEFAULT_EVAL_STEPS, Outputs, Request
from advisor.experiment.state import SessionState
from advisor.export.files import write_atomically
from advisor.export.format import Found
from advisor.export.formats import format_for
from advisor.figures.options import choice_of, count_of, device_of, named, names_of, seconds_of
from advisor.files.folders import scratch_folder
from advisor.headless.run import HeadlessReporter, open_session
from advisor.process.interrupts import INTERRUPTS
from advisor.process.meanwhile import replaced
from advisor.recipe.catalog import load_catalog
from advisor.records import Mode, Numerics, Objective, TargetSpec, Value
from advisor.records.trials import WORKLOAD_SUFFIX
from advisor.report.figures import settings_to_export, stack_helps

_FRAME_PX = 640  # the height of the report in a notebook


def tune(
    workload: Any,
    budget: str | float = DEFAULT_BUDGET_S,
    *,
    objective: str = "throughput",
    allow: str = "close",
    mode: str | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    evaluate: Callable[..., Any] | str = "",
    min_score: float | None = None,
    max_drop: float | None = None,
    steps: int = DEFAULT_EVAL_STEPS,
    only: str | Sequence[str] = (),
    skip: str | Sequence[str] = (),
    progress: bool = True,
) -> Tuned:
    """See :func:`advisor.tune`."""
    if multiprocessing.parent_process() is not None:
        raise UsageError(
            "advisor.tune() was called while its own target was imported.",
            "Put the call under `if __name__ == '__main__':`.",
        )
    catalog = load_catalog()

    def ids(name: str, value: str | Sequence[str]) -> tuple[str, ...]:
        text = value if isinstance(value, str) else ",".join(value)
        return tuple(catalog[each].id for each in (named(name)(names_of)(text) if text else ()))

    spec = TargetSpec(
        target=target_of(workload),
        directory=str(Path.cwd()),
        mode=named("mode")(choice_of(Mode))(mode) if mode else None,
        device=named("device")(device_of)(str(device)),
        batch_size=None if batch_size is None else named("batch_size")(count_of)(str(batch_size)),
    )
    request = Request(
        spec,
        budget_s=named("budget")(seconds_of)(str(budget)),
        objective=named("objective")(choice_of(Objective))(objective),
        allow=named("allow")(choice_of(Numerics))(allow),
        evaluate=evaluate and target_of(evaluate),
        min_score=min_score,
        max_drop=max_drop,
        eval_steps=named("steps")(count_of)(str(steps)),
        only=ids("only", only),
        skip=ids("skip", skip),
    )
    request.check()
    with Path(os.devnull).open("w") as nowhere:
        reporter = HeadlessReporter(sys.stderr if progress else nowhere)
        session = open_session(request, None, reporter.handle)
        with INTERRUPTS.handled(), INTERRUPTS.obeyed_by(session.cancel), program_left_alone():
            session.run()
    if reporter.state.failure is not None:
        raise reporter.state.failure.error
    return Tuned(reporter.state, request)


def program_left_alone() -> AbstractContextManager[None]:
    """A context in which the processes of multiprocessing do not run the calling program again."""
    original = multiprocessing.spawn.get_preparation_data

    def without_main(name: str) -> dict[str, Any]:
        data: dict[str, Any] = original(name)
        return {key: value for key, value in data.items() if not key.startswith("init_main")}

    return replaced(multiprocessing.spawn, "get_preparation_data", without_main)


class Tuned:
    """The result of a session. A notebook shows it as the report.

    ``settings`` are the settings that an export writes: those that are measurably better, and those a person accepted.
    ``speedup`` is None if they are not measurably better.
    """

    def __init__(self, state: SessionState, request: Request) -> None:
        self._state = state
        self._request = request
        self._catalog = load_catalog(request.recipe_folders)

    @property
    def settings(self) -> Mapping[str, Value]:
        """The settings of the best combination, by their keys."""
        return dict(settings_to_export(self._state))

    @property
    def speedup(self) -> float | None:
        """Samples per second with the settings, divided by those without; None if they are not measurably better."""
        stack = self._state.stack
        return stack.comparison.speedup if stack_helps(self._state) and stack and stack.comparison else None

    def report(self, path: str | Path | None = None) -> str:
        """Return the report as Markdown. With a path, write it there and return it (HTML if the path ends in .html)."""
        text = self._content("--report", str(path or "report.md"))
        if path is not None:
            write_atomically(str(path), text)
        return text

    def apply(self, *objects: Any) -> Any:
        """Apply the settings to models, optimizers and loaders of this process, as ``Tuning.prepare`` does."""
        from advisor.step.tuning import Tuning

        return Tuning(self.settings, self._catalog).prepare(*objects)

    def save(self, path: str | Path) -> None:
        """Write the settings: YAML for ``advisor.load`` or, if the path ends in .py, a module of plain PyTorch."""
        write_atomically(str(path), self._content("--export", str(path)))

    def _content(self, option: str, path: str) -> str:
        """The text of the file that this command-line option would write to this path."""
        found = Found(self._state, self._request, Outputs(), self._catalog)
        [file] = format_for(option, path, found.outputs).files(found, path)
        return str(file.content())

    def __repr__(self) -> str:
        if self.speedup is None:
            return "Tuned(no settings that are measurably better together were found)"
        settings = ", ".join(f"{key}: {value}" for key, value in self.settings.items())
        return f"Tuned({self.speedup:.2f}x with {settings})"

    def _repr_html_(self) -> str:
        """The whole report in a separate frame, so that its styles and the notebook's do not mix."""
        page = self._content("--report", "report.html")
        style = f"width:100%;height:{_FRAME_PX}px;border:0"
        return f'<iframe title="perf-advisor" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


def target_of(workload: Any) -> str:
    """The name of a workload as a target: a text as it is, a function by its module, another object by a new file.

    Raises UsageError for an object that no other process could read.
    """
    if isinstance(workload, str):
        return workload
    module, name = getattr(workload, "__module__", "__main__"), getattr(workload, "__qualname__", "")
    if module != "__main__" and name.isidentifier() and getattr(sys.modules.get(module), name, None) is workload:
        return f"{module}:{name}"
    import cloudpickle  # late: only objects that cannot be imported by name need it

    name = name or type(workload).__name__
    try:
        content = cloudpickle.dumps(workload)
    except Exception as error:  # an object's own __reduce__ may raise anything
        raise UsageError(
            f"{name} cannot be handed to the processes that measure it: {error}.",
            "Put build() into a file, in a notebook by `%%writefile mymodel.py` as the first line of its cell, and "
            "call advisor.tune('mymodel.py:build').",
        ) from error
    safe = "".join(letter if letter.isalnum() else "_" for letter in name)
    path = scratch_folder() / f"{safe}-{hashlib.sha256(content).hexdigest()[:12]}{WORKLOAD_SUFFIX}"
    path.write_bytes(content)
    path.chmod(0o600)
    return str(path)
