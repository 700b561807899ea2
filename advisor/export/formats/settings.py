"""The format for the settings file."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from advisor.experiment.request import Outputs
from advisor.export.format import File, Format, Found, Offer
from advisor.records import Mode

IMPORT = "import advisor"
_IN_TRAINERS: Mapping[str, tuple[str, ...]] = {  # the library whose trainer runs the loop -> the lines
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


class SettingsFile(Format):
    """The winning settings as a flat YAML mapping."""

    option = "--export"
    brief = "YAML"
    suffixes = (".yaml", ".yml")
    order = 20
    offered = Offer("settings", "Settings (YAML)", "tuned.yaml", "yaml", "What advisor.load() applies")

    def serves(self, outputs: Outputs, path: str) -> bool:
        """False with a config, since the patched config has the same ending."""
        return outputs.config_path is None

    def files(self, found: Found, path: str) -> Iterable[File]:
        from advisor.export.settings_file import settings_yaml

        lines = [f"  {line}" for line in lines_in_script(Path(path).name, found)]
        more = ("To use them, in your script:", *lines) if found.settings else ()
        text = lambda: settings_yaml(found.state, found.settings, target=found.request.target.command)  # noqa: E731
        yield File("Settings", path, text, found.remark, more=(*found.launch_lines, *more))

    def next_steps(self, name: str, found: Found) -> Sequence[str]:
        first, *rest = (line for line in lines_in_script(name, found) if line != IMPORT)
        return f"in your script: {first}", *rest


def lines_in_script(name: str, found: Found, trainer: str = "") -> tuple[str, ...]:
    """The lines that apply the settings file ``name`` in the measured loop, or in a library's trainer."""
    state = found.state
    workload = state.facts.workload if state.facts else None
    name = repr(name) if '"' in name or "\\" in name else f'"{name}"'
    if trainer := trainer or (workload.trainer if workload else ""):
        on_cpu = "use_cpu=True, " if workload and workload.device_type == "cpu" else ""  # otherwise they refuse bf16
        return tuple(line.format(name=name, on_cpu=on_cpu) for line in _IN_TRAINERS[trainer])
    trains = state.mode is Mode.TRAIN
    objects = ["model"]
    objects += ["optimizer"] if trains and (workload is None or workload.optimizer is not None) else []
    objects += ["loader"] if workload is None or workload.loader is not None else []
    prepared = f"{', '.join(objects)} = tuning.prepare({', '.join(objects)})"
    first = IMPORT, f"tuning = advisor.load({name})"
    if not trains:
        return *first, *([prepared] if objects[1:] else []), "model = tuning.infer(model)"
    if workload is not None and workload.own_step:
        return *first, prepared, "step = tuning.own_step(step, model)  # step(batch): the body of your loop"
    clip = f", clip_grad={workload.clip_norm}" if workload is not None and workload.clip_norm else ""
    return *first, prepared, f"step = tuning.train_step(model, optimizer, loss{clip})  # then: step(batch)"
