"""The settings file and the Python file of the latest recorded session, each timed in a plain loop beside the stack.

    PERF_ADVISOR_STATE=state python tests/gpu/exported_files.py

Prints a line for each file: the stack's milliseconds per step, the plain loop's with the file, and their ratio.
"""

import tempfile
from pathlib import Path

from advisor.experiment.measuring.verification import verify
from advisor.experiment.outputs import Outputs
from advisor.experiment.past.journal import open_session
from advisor.experiment.state import SessionState
from advisor.export.outputs import write_outputs
from advisor.files.scratch import SCRATCH
from advisor.recipe.catalog import load_catalog
from advisor.records import TrialSpec
from advisor.runner.trials import Runner


class Bench:
    """What verifying needs of a bench: specs, and a real runner."""

    def __init__(self, target):
        self.runner = Runner()
        self.target = target

    def spec(self, name, settings, *, kind):
        log = SCRATCH.folder() / f"{name}.log"
        return TrialSpec(name, self.target, dict(settings), 1.5, 60, 120, str(log), kind=kind)


def tell(stack, found):
    ratio = f"{found.tuned_step_ms / stack.step_ms:.3f}" if found.tuned_step_ms else found.problem
    print(Path(found.path).name, stack.step_ms, found.tuned_step_ms, ratio, flush=True)


def main():
    past = open_session()
    state, catalog = SessionState.of(past.events), load_catalog(())
    Runner.prepare()
    bench, stack = Bench(past.request.target), state.stack
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tuned.yaml", "tuned.py"):
            outputs = Outputs(export_path=str(Path(folder) / name))
            write_outputs(state, past.request, outputs, catalog, lambda file: tell(stack, verify(bench, file, stack)))


if __name__ == "__main__":
    main()
