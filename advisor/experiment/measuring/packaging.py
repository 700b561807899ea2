"""Packages a tuned model as one compiled file, or keeps a loop's compiler cache, in separate trial processes."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from advisor.errors import UsageError
from advisor.experiment.measuring.verification import loop_spec
from advisor.experiment.request import Request
from advisor.files.folders import scratch_folder
from advisor.process.interrupts import INTERRUPTS
from advisor.recipe.catalog import Catalog
from advisor.records import Outcome, TrialKind, TrialResult, Value
from advisor.runner.trials import Runner

# The longest that exporting and compiling may take, in seconds.
LIMIT_S = 600.0
_SIGNAL_CHECK_S = 0.1


def package(request: Request, settings: Mapping[str, Value], catalog: Catalog) -> bytes:
    """The compiled model. Raises UsageError with the reason if the model cannot be exported."""
    path = scratch_folder() / "model.pt2"
    result = _run(request, settings, catalog, path)
    if result.outcome is Outcome.MEASURED:
        return _read_once(path)
    raise UsageError(
        f"the model cannot be compiled to a file: {_why(result)}",
        "Export the settings instead, with --export tuned.yaml; or change the model so that torch.export accepts it.",
        result.details,
    )


def warm_start(request: Request, settings: Mapping[str, Value], catalog: Catalog) -> tuple[bytes, float, float]:
    """PyTorch's cache artifacts, and the seconds of the first steps without and with them. Raises UsageError."""
    path, first_steps_s = Path(mkdtemp(dir=scratch_folder())) / "tuned.cache", list[float]()
    for _ in range(2):  # the second process reads what the first one wrote
        with TemporaryDirectory() as empty:
            result = _run(request, settings, catalog, path, TORCHINDUCTOR_CACHE_DIR=empty)
        if result.outcome is not Outcome.MEASURED:
            hint = "Export the settings alone, with --export tuned.yaml."
            raise UsageError(f"the compiled code cannot be kept: {_why(result)}", hint, result.details)
        first_steps_s.append(result.warmup_s or 0.0)
    cold_s, warm_s = first_steps_s
    return _read_once(path), cold_s, warm_s


def _run(
    request: Request, settings: Mapping[str, Value], catalog: Catalog, path: Path, **environment: str
) -> TrialResult:
    spec = replace(
        loop_spec("export, compiled", request.target, limit_s=LIMIT_S),
        settings=dict(settings),
        seed=request.seed,
        kind=TrialKind.PACKAGE,
        environment=catalog.environment(settings) | environment,
        export_path=str(path),
    )
    Runner.prepare()
    with Runner().open(spec, lambda message: None) as trial:
        while (result := trial.result_by(time.monotonic() + _SIGNAL_CHECK_S)) is None:
            if INTERRUPTS.asked:
                trial.cancel()
    return result


def _read_once(path: Path) -> bytes:
    content = path.read_bytes()
    path.unlink()
    return content


def _why(result: TrialResult) -> str:
    return f"it took more than {LIMIT_S:.0f} s" if result.outcome is Outcome.TIMED_OUT else result.reason
