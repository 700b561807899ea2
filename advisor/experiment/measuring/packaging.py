"""A tuned model compiled to one file, in a separate trial process."""

import time
from collections.abc import Mapping
from dataclasses import replace

from advisor.errors import UsageError
from advisor.experiment.measuring.verification import loop_spec
from advisor.experiment.request import Request
from advisor.files.scratch import scratch_folder
from advisor.process.interrupts import INTERRUPTS
from advisor.recipe.catalog import Catalog
from advisor.records import Outcome, TrialKind, Value
from advisor.runner.trials import Runner

# The longest that exporting and compiling may take, in seconds.
LIMIT_S = 600.0
_SIGNAL_CHECK_S = 0.1


def package(request: Request, settings: Mapping[str, Value], catalog: Catalog) -> bytes:
    """The compiled model. Raises UsageError with the reason where the model cannot be exported."""
    path = scratch_folder() / "model.pt2"
    spec = replace(
        loop_spec("model, compiled", request.target, limit_s=LIMIT_S),
        settings=dict(settings),
        seed=request.seed,
        kind=TrialKind.PACKAGE,
        environment=catalog.environment(settings),
        export_path=str(path),
    )
    Runner.prepare()
    with Runner().open(spec, lambda message: None) as trial:
        while (result := trial.result_by(time.monotonic() + _SIGNAL_CHECK_S)) is None:
            if INTERRUPTS.asked:
                trial.cancel()
    if result.outcome is Outcome.MEASURED:
        content = path.read_bytes()
        path.unlink()
        return content
    why = f"it took more than {LIMIT_S:.0f} s" if result.outcome is Outcome.TIMED_OUT else result.reason
    raise UsageError(
        f"the model cannot be compiled to a file: {why}",
        "Export the settings instead, with --export tuned.yaml; or make the model one that torch.export takes.",
        result.details,
    )
