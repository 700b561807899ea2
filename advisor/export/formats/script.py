"""The user's own script, or the file with the target's build(), with the settings written into it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.errors import UsageError
from advisor.experiment.request import Outputs
from advisor.export.format import File, Format, Found, Offer
from advisor.records import ConfigKind, Exported, Value, WorkloadFacts

if TYPE_CHECKING:
    from advisor.python.changes import Patched


class PatchedScript(Format):
    """The winning settings, written into a copy of the user's own file."""

    option = "--export"
    brief = "your own FILE.tuned.py"
    suffixes = (".py",)
    order = 5

    def offer(self, outputs: Outputs) -> Offer | None:
        if outputs.own_file is None:
            return None
        path = Path(outputs.own_file)
        about = "The change in your own file: review it as a diff"
        return Offer(self.id, f"{path.name}, changed", f"{path.stem}.tuned.py", "diff", about)

    def serves(self, outputs: Outputs, path: str) -> bool:
        """Whether this format writes the path: always for a script; for a build() if the path's name asks for it."""
        named = outputs.own_file is not None and Path(path).name == f"{Path(outputs.own_file).stem}.tuned.py"
        return named or outputs.is_script

    def files(self, found: Found, path: str) -> Iterable[File]:
        """The changed files: the target's own at ``path``, and changed files that it imports in the same folder."""
        patched = _patched(found)
        paths = _paths(found, patched, path)
        others = [f"  {Path(file).name} changes too: use {to} in its place" for file, to in paths.items() if to != path]
        sources = found.state.facts.sources if found.state.facts else ()
        copies = {Path(path).with_name(f"{Path(file).stem}.tuned.py") for file in sources if file not in paths}
        others += [f"  {one.name} is from an earlier export, not this one" for one in sorted(copies) if one.exists()]
        more = (*others, *(f"  not in it: {text}" for text in patched.left_out), *found.launch_lines)
        for file, to in paths.items():
            how = "with the settings" if patched.files[file] != Path(file).read_bytes() else "as it was,"
            title = f"{Path(file).name} {how}"
            yield File(title, to, partial(patched.files.__getitem__, file), found.remark, more if to == path else ())

    def preview(self, found: Found) -> str:
        """A unified diff against the user's files."""
        from advisor.export.config_patch import diff

        root, changes = found.request.target.directory, []
        for file, text in _patched(found).files.items():
            shown = str(Path(file).relative_to(root)) if Path(file).is_relative_to(root) else file.lstrip("/")
            before = Path(file).read_bytes()
            changes.append(diff(before.decode(errors="replace"), text.decode(errors="replace"), shown))
        return "".join(changes) or f"Nothing would change in {Path(str(found.outputs.own_file)).name}.\n"

    def to_verify(self, found: Found, path: str) -> Exported:
        return Exported(path, read_as=_paths(found, _patched(found), path))

    def next_steps(self, name: str, found: Found) -> tuple[str, str]:
        return f"review the diff, and run {name} instead of your file", "all other lines are unchanged"


def _paths(found: Found, patched: Patched, path: str) -> dict[str, str]:
    """The path for each changed file. Files from other folders get the folder into their names."""
    own, folder = found.outputs.own_file, Path(str(found.outputs.own_file)).parent
    parts = {file: Path(os.path.relpath(file, folder)).with_suffix(".tuned.py").parts for file in patched.files}
    names = {file: ".".join(part for part in each if part != "..") for file, each in parts.items()}
    return {file: path if file == own else str(Path(path).with_name(name)) for file, name in names.items()}


def _patched(found: Found) -> Patched:
    from advisor.python.changes import patched_files

    state, settings = found.state, found.settings
    facts = state.facts.workload if state.facts else None
    if settings and facts is not None and facts.trainer and not facts.places:
        raise UsageError(
            f"the loop is in {facts.trainer}, so no line of your file is changed.",
            "Export tuned.yaml: a callback applies its settings to the trainer.",
        )
    if facts is None:
        raise UsageError("the places for the settings are not known.", "Measure again, or export tuned.yaml.")
    measured = f": {found.speedup}" if found.speedup else ""
    habits = [one for one in state.findings if one.recipe == "eval_no_grad"]
    given = arguments_of_trainer(settings, facts)
    own = str(found.outputs.own_file)
    return patched_files(found.catalog, settings, facts, own, measured=measured, evaluations=habits, arguments=given)


def arguments_of_trainer(settings: Mapping[str, Value], facts: WorkloadFacts) -> dict[str, dict[str, str]]:
    """The new arguments of the script's ``TrainingArguments``, by the keys of their settings."""
    from advisor.export.configs.words import Wanted, words_of

    place = next((place for place in facts.places if place.kind == "arguments"), None)
    if place is None:
        return {}
    tree = ast.parse(Path(place.file).read_bytes())
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.lineno == place.line)
    present = {one.arg: getattr(one.value, "value", True) for call in calls for one in call.keywords if one.arg}
    found: dict[str, dict[str, str]] = {}
    config = Wanted(settings, mode=facts.mode, on_cpu=facts.device_type == "cpu", tree=present)
    for phrase in words_of(ConfigKind.HUGGINGFACE, config):
        said = {}
        for entry in phrase.entries:
            name, *inside = entry.path
            if not entry.only_there or (present.get(name) and present[name] != entry.value):
                said[name] = repr({inside[0]: entry.value} if inside else entry.value)
        found |= dict.fromkeys(phrase.keys, said)
    return found
