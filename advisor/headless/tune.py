"""``advisor.tune``: a session from a notebook or a program, with its result as an object."""

from __future__ import annotations

import html
import multiprocessing.spawn
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

from advisor.errors import AdvisorError, UsageError
from advisor.experiment.gains import stack_helps
from advisor.experiment.outputs import Outputs
from advisor.experiment.request import DEFAULT_BUDGET_S, Request
from advisor.experiment.state import SessionState
from advisor.export.files import write_atomically
from advisor.export.format import Found
from advisor.export.formats import format_for
from advisor.figures.options import choice_of, count_of, device_of, named, names_of, seconds_of
from advisor.files.scratch import scratch_folder
from advisor.headless.progress import HeadlessReporter
from advisor.headless.run import open_session
from advisor.process.interrupts import INTERRUPTS
from advisor.process.meanwhile import replaced
from advisor.recipe.catalog import load_catalog
from advisor.records import Mode, Numerics, Objective, TargetSpec, Value
from advisor.records.trials import WORKLOAD_SUFFIX
from advisor.report.conclusions import settings_to_export

T = TypeVar("T")

_BAR_CELLS = 24
_FRAME_PX = 640


def tune(
    workload: Any,
    budget: str | float = DEFAULT_BUDGET_S,
    *,
    objective: str = "throughput",
    allow: str = "close",
    mode: str | None = None,
    device: str = "auto",
    batch_size: int | None = None,
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
    spec = TargetSpec(
        target=target_of(workload),
        directory=str(Path.cwd()),
        mode=_read("mode", choice_of(Mode), mode) if mode else None,
        device=_read("device", device_of, device),
        batch_size=None if batch_size is None else _read("batch_size", count_of, batch_size),
    )
    catalog = load_catalog()
    request = Request(
        spec,
        budget_s=seconds_in(budget),
        objective=_read("objective", choice_of(Objective), objective),
        allow=_read("allow", choice_of(Numerics), allow),
        only=tuple(catalog[name].id for name in _names("only", only)),
        skip=tuple(catalog[name].id for name in _names("skip", skip)),
    )
    return Tuned(_run(request, progress=progress), request)


def _run(request: Request, *, progress: bool) -> SessionState:
    """Run a session to its end; its state. Raises AdvisorError where it failed."""
    reporter = BarReporter(sys.stderr) if progress else None
    state = SessionState() if reporter is None else reporter.state
    session = open_session(request, None, state.apply if reporter is None else reporter.handle)
    with INTERRUPTS.handled(), INTERRUPTS.obeyed_by(session.cancel), program_left_alone():
        session.run()
    if reporter is not None:
        reporter.done()
    if state.failure is not None:
        raise AdvisorError(state.failure.message, state.failure.hint, state.failure.details)
    return state


@contextmanager
def program_left_alone() -> Iterator[None]:
    """Have new processes not run the calling program, as those of multiprocessing do: trials read nothing of it."""
    original = multiprocessing.spawn.get_preparation_data

    def without_main(name: str) -> dict[str, Any]:
        data: dict[str, Any] = original(name)
        return {key: value for key, value in data.items() if not key.startswith("init_main")}

    with replaced(multiprocessing.spawn, "get_preparation_data", without_main):
        yield


def _read(name: str, read: Callable[[str], T], value: object) -> T:
    """An argument by the reader of the option of that name. Raises UsageError that names the argument."""
    with named(name):
        return read(str(value))


def _names(name: str, value: str | Sequence[str]) -> tuple[str, ...]:
    return _read(name, names_of, value if isinstance(value, str) else ",".join(value)) if value else ()


class Tuned:
    """The result of a session. In a notebook it shows its report.

    ``settings`` are the ones that an export would hold: empty where nothing is measurably better, unless a person
    accepted it. Then ``speedup`` is None.
    """

    def __init__(self, state: SessionState, request: Request) -> None:
        self._state = state
        self._request = request
        self._catalog = load_catalog(request.recipe_folders)

    @property
    def settings(self) -> Mapping[str, Value]:
        """The settings that won together, by their keys."""
        return dict(settings_to_export(self._state))

    @property
    def speedup(self) -> float | None:
        """Samples per second with the settings over those without; None where they are not measurably better."""
        stack = self._state.stack
        return stack.comparison.speedup if stack_helps(self._state) and stack and stack.comparison else None

    def report(self, path: str | Path | None = None) -> str:
        """The report as Markdown; with a path it is written there, as HTML where that ends in .html."""
        text = self._content("--report", str(path or "report.md"))
        if path is not None:
            write_atomically(str(path), text)
        return text

    def apply(self, *objects: Any) -> Any:
        """Apply the settings to models, optimizers and loaders of this process, as ``Tuning.prepare`` does."""
        from advisor.step.tuning import Tuning

        return Tuning(self.settings, self._catalog).prepare(*objects)

    def save(self, path: str | Path) -> None:
        """Write the settings: a YAML file for ``advisor.load``, or where it ends in .py a module of plain PyTorch."""
        write_atomically(str(path), self._content("--export", str(path)))

    def _content(self, option: str, path: str) -> str:
        """The file that this option of the command line would write to this path."""
        found = Found(self._state, self._request, Outputs(), self._catalog)
        [file] = format_for(option, path, found.outputs).files(found, path)
        return str(file.content())

    def __repr__(self) -> str:
        if self.speedup is None:
            return "Tuned(no settings that are measurably better together were found)"
        named = ", ".join(f"{key}: {value}" for key, value in self.settings.items())
        return f"Tuned({self.speedup:.2f}x with {named})"

    def _repr_html_(self) -> str:
        """The whole report in a frame of its own: its styles and the notebook's leave each other alone."""
        page = self._content("--report", "report.html")
        style = f"width:100%;height:{_FRAME_PX}px;border:0"
        return f'<iframe title="perf-advisor" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


class BarReporter(HeadlessReporter):
    """A progress bar on one line, with the current activity behind it."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(file)
        self._line = file
        self._stage = ""

    def _tell(self, line: str) -> None:
        self._share = max(self._share, min(self.state.progress, 1.0))
        filled = round(self._share * _BAR_CELLS)
        bar = "#" * filled + "-" * (_BAR_CELLS - filled)
        with suppress(OSError, ValueError):
            self._line.write(f"\r\033[K[{bar}] {100 * self._share:3.0f} %  {line[:60]}")
            self._line.flush()

    def done(self) -> None:
        """End the line."""
        with suppress(OSError, ValueError):
            self._line.write("\n")


def seconds_in(budget: str | float) -> float:
    """Seconds of a number, or of a text such as ``"90s"``, ``"2m"`` or ``"1h30m"``. Raises UsageError otherwise."""
    if isinstance(budget, int | float) and not isinstance(budget, bool) and budget > 0:
        return float(budget)
    return seconds_of(str(budget))


def target_of(workload: Any) -> str:
    """The target that names a workload: a text as it is, a function by its module, anything else in a file of its own.

    Raises UsageError for an object that no other process could read.
    """
    if isinstance(workload, str):
        return workload
    module, name = getattr(workload, "__module__", "__main__"), getattr(workload, "__qualname__", "")
    if module != "__main__" and name.isidentifier() and getattr(sys.modules.get(module), name, None) is workload:
        return f"{module}:{name}"
    return _pickled(workload, name or type(workload).__name__)


def _pickled(workload: Any, name: str) -> str:
    try:
        content = _bytes_of(workload)
    except Exception as error:  # whatever an object's own reduction raises
        raise UsageError(
            f"{name} cannot be handed to the processes that measure it: {error}.",
            "Type `pip install cloudpickle`; or put build() into a file, in a notebook by `%%writefile mymodel.py` as "
            "the first line of its cell, and call advisor.tune('mymodel.py:build').",
        ) from error
    safe = "".join(letter if letter.isalnum() else "_" for letter in name)
    path = scratch_folder() / f"{safe}{WORKLOAD_SUFFIX}"
    path.write_bytes(content)
    path.chmod(0o600)
    return str(path)


def _bytes_of(workload: Any) -> bytes:
    """A workload as bytes, by cloudpickle where it is installed. Raises what cannot be pickled raises."""
    with suppress(ImportError):
        import cloudpickle

        return bytes(cloudpickle.dumps(workload))
    content = pickle.dumps(workload)
    if b"__main__" in content:
        raise pickle.PicklingError("it is defined in this notebook or program itself")
    return content
