"""The files that a session is asked to write."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.records.kinds import ConfigKind

STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True)
class Outputs:
    """Destinations of results. ``json_path`` may be ``-``; ``config_path`` is the user's own file, patched on export.

    ``key_map`` names, for a setting's key, the dotted path of the entry in the user's config that holds it.
    ``trace_path`` is for the profile's Chrome trace, gzipped when it ends in .gz. ``config_kind`` is the program that
    reads the config; None when its keys tell. ``verify``: the export is applied to the target and timed.
    ``streams_events``: standard output gets each event as a line of JSON, and the report as the last.
    """

    json_path: str | None = None
    export_path: str | None = None
    report_path: str | None = None
    config_path: str | None = None
    key_map: Mapping[str, str] = field(default_factory=dict)
    trace_path: str | None = None
    config_kind: ConfigKind | None = None
    verify: bool = True
    streams_events: bool = False

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
