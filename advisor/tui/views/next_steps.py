"""What to do with an exported file, in three lines with its real name. Pure functions."""

from __future__ import annotations

from pathlib import Path

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.records import Mode, Verification
from advisor.report.figures import verified_words
from advisor.tui.exporting import ExportFormat

_PREPARE = "model, optimizer, loader = tuning.prepare(model, optimizer, loader)"


def next_steps(chosen: ExportFormat, path: str, state: SessionState, target: str) -> Content:
    """Return the lines for a format and the path that it is written to, with what verifying it found."""
    name = path or chosen.default_name
    infers = state.facts is not None and state.facts.workload.mode is Mode.INFER
    lines = _lines(chosen.id, name, target, infers=infers)
    return Content("\n").join([_written(name, state.verification), *map(Content, lines)])


def _written(name: str, verification: Verification | None) -> Content:
    if verification and Path(verification.path).name == Path(name).name:
        sign, style = ("!", "$warning") if verification.problem else ("✓", "$success")
        return Content.assemble((f"{sign} {verified_words(verification)}", style))
    return Content.assemble(("1  s", "bold $accent"), f" writes {name}")


def _lines(format_id: str, name: str, target: str, *, infers: bool) -> tuple[str, str]:
    module, step = Path(name).stem, "infer_step" if infers else "train_step"
    return {
        "settings": (
            f'2  in your script: tuning = advisor.load("{name}")',
            "3  model = tuning.infer(model)" if infers else f"3  {_PREPARE}",
        ),
        "config": (
            f"2  run your training with {name} in place of your config",
            "3  only the lines of the diff above differ",
        ),
        "python": (f"2  in your script: from {module} import prepare, {step}", "3  it needs no perf-advisor"),
    }.get(format_id, (f"2  read {name}, or pass it on", f"3  measure again after changes: perf-advisor {target}"))
