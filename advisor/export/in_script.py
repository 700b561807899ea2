"""The lines of a person's own script that apply a settings file, by the kind of their loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from advisor.records import Mode, WorkloadFacts

if TYPE_CHECKING:
    from advisor.experiment.state import SessionState  # the command line lists the formats before it reads a session

IMPORT = "import advisor"
# By the library whose trainer runs the loop.
_IN_TRAINERS: Mapping[str, tuple[str, ...]] = {
    "transformers": (
        "from advisor.transformers import TunedCallback, arguments",
        "args = TrainingArguments(..., {on_cpu}**arguments({name}))",
        "trainer = Trainer(..., args=args, callbacks=[TunedCallback({name})])",
    ),
    "lightning": (
        "from advisor.lightning import TunedCallback",
        "trainer = Trainer(..., callbacks=[TunedCallback({name})])",
    ),
}


def lines_in_script(name: str, state: SessionState) -> tuple[str, ...]:
    """The lines that apply the settings file of this name in the loop that the session measured."""
    workload = state.facts.workload if state.facts else None
    name = repr(name) if '"' in name or "\\" in name else f'"{name}"'
    if workload is not None and workload.trainer:
        on_cpu = "use_cpu=True, " if workload.device_type == "cpu" else ""  # without it they refuse bf16
        return tuple(line.format(name=name, on_cpu=on_cpu) for line in _IN_TRAINERS[workload.trainer])
    trains = state.mode is Mode.TRAIN
    objects = ["model"]
    objects += ["optimizer"] if trains and (workload is None or workload.optimizer is not None) else []
    objects += ["loader"] if workload is None or workload.loader is not None else []
    prepared = f"{', '.join(objects)} = tuning.prepare({', '.join(objects)})"
    first = IMPORT, f"tuning = advisor.load({name})"
    if not trains:
        return *first, *([prepared] if objects[1:] else []), "model = tuning.infer(model)"
    return *first, prepared, _step(workload)


def _step(workload: WorkloadFacts | None) -> str:
    if workload is not None and workload.own_step:
        return "step = tuning.own_step(step, model)  # step(batch): the body of your loop"
    clip = f", clip_grad={workload.clip_norm}" if workload is not None and workload.clip_norm else ""
    return f"step = tuning.train_step(model, optimizer, loss{clip})  # then: step(batch)"
