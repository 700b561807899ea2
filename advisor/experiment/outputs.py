"""The files that a session is asked to write."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from advisor.errors import UsageError
from advisor.experiment.request import Request
from advisor.records.kinds import ConfigKind
from advisor.source.reading import target_file
from advisor.workloads.scripts import is_script

STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files that a session is asked to write, by their paths."""

    json_path: str | None = None  # may be ``-``
    export_path: str | None = None
    report_path: str | None = None
    config_path: str | None = None  # the user's own file, patched on export
    key_map: Mapping[str, str] = field(default_factory=dict)  # its entry's dotted path in the config, by setting
    trace_path: str | None = None  # for the profile's Chrome trace, gzipped
    config_kind: ConfigKind | None = None  # the program that reads the config; None when its keys tell
    verify: bool = True  # the export is applied to the target and timed
    own_file: str | None = None  # the target's own, whose change can be exported as well
    is_script: bool = False  # it is a script, which has no build()
    shows_diff: bool = False  # the change is printed too

    @property
    def json_to_stdout(self) -> bool:
        """Whether standard output belongs to the JSON report."""
        return self.json_path == STANDARD_OUTPUT

    @property
    def files(self) -> dict[str, str]:
        """The files to write, by the option that names each."""
        named = {
            "--json": self.json_path,
            "--export": self.export_path,
            "--report": self.report_path,
            "--trace": self.trace_path,
        }
        return {option: path for option, path in named.items() if path is not None}


def beside_own_files(outputs: Outputs, request: Request) -> Outputs:
    """The outputs with the target's own file. Raises UsageError for one that would replace it or a training script."""
    target, directory = request.target.target, request.target.directory
    of_target = target_file(target, directory)
    own = {os.path.realpath(file) for file in (of_target, *request.scripts) if file}
    for option, text in outputs.files.items():
        if os.path.realpath(text) in own:
            raise UsageError(f"{option}: {text} is the code that is measured.", "Name another file.")
    own_file = str(of_target.resolve()) if of_target else None
    return replace(outputs, own_file=own_file, is_script=is_script(target, directory, "build"))
