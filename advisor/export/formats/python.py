"""The format for the Python file."""

from collections.abc import Iterable
from pathlib import Path

from advisor.export.format import File, Format, Found, Offer
from advisor.records import Mode


class PythonFile(Format):
    """The winning settings as plain PyTorch."""

    option = "--export"
    brief = ".py"
    suffixes = (".py",)
    order = 30
    offered = Offer("python", "Python file", "tuned.py", "python", "The same in plain PyTorch, without perf-advisor")

    def files(self, found: Found, path: str) -> Iterable[File]:
        source = _source(found)
        lacks = (line.strip(" #") for line in source.splitlines() if "# Not in this file:" in line)
        yield File("Python file", path, lambda: source, found.remark, more=(*lacks, *found.launch_lines))

    def next_steps(self, name: str, found: Found) -> tuple[str, str]:
        facts = found.state.facts
        step = "own_step" if facts and facts.workload.own_step else f"{found.state.mode or Mode.TRAIN}_step"
        return f"in your script: from {Path(name).stem} import prepare, {step}", "it needs no perf-advisor"


def _source(found: Found) -> str:
    from advisor.python.file import python_source
    from advisor.python.step import WrittenFor
    from advisor.report.figures import measured_on

    state = found.state
    baseline = state.baseline.result if state.baseline else None
    where = measured_on(state) if state.hardware else "this machine"
    measured = f"{found.speedup}, for {found.request.target.target} on {where}" if found.speedup else ""
    workload = WrittenFor(
        "step" if state.facts and state.facts.workload.own_step else baseline.loss_form if baseline else "",
        baseline.batch_form if baseline else None,
        state.facts.workload if state.facts else None,
        measured,
    )
    return python_source(found.catalog, found.settings, state.mode, workload)
