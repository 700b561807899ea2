"""The base class of export formats, for the command line, the app and the palette.

Each format is a module in ``formats/``. It defines a subclass of ``Format``, and has no slow top-level imports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from advisor.experiment.request import Outputs
from advisor.records import Exported

if TYPE_CHECKING:
    from advisor.experiment.request import Request
    from advisor.experiment.state import SessionState
    from advisor.recipe.catalog import Catalog
    from advisor.records import Value
    from advisor.report.document import Document


@dataclass(frozen=True, slots=True)
class Offer:
    """A format in the app's list. ``language`` (``yaml`` or ``diff``, for example) sets the colours of the preview."""

    id: str
    title: str
    default_name: str
    language: str = "text"
    description: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A session, and the objects that a format needs to write it."""

    state: SessionState
    request: Request
    outputs: Outputs
    catalog: Catalog

    @property
    def settings(self) -> dict[str, Value]:
        """The winning settings, without those whose recipes no longer exist."""
        from advisor.report.figures import settings_to_export

        return dict(self.catalog.without_removed(settings_to_export(self.state)))

    @property
    def speedup(self) -> str:
        """The speed-up of the settings in one line; empty if they were not measured together."""
        from advisor.export.settings_file import stack_line

        stack = self.state.stack
        measured = stack is not None and stack.comparison and stack.settings == self.settings
        return stack_line(stack, self.state) if stack and measured else ""

    @property
    def launch_lines(self) -> tuple[str, ...]:
        """Lines on how to start a script with these settings, if it needs several processes."""
        from advisor.report.several_gpus import launch_lines

        return tuple(launch_lines(self.state, self.settings))

    @property
    def change(self) -> str:
        """The change of the user's file as a diff; empty if nothing changes or the places to change are unknown."""
        from advisor.export.formats import format_of

        known = self.outputs.own_file and self.settings and self.state.facts and self.state.facts.workload.places
        return format_of("script").preview(self) if known else ""

    def report(self, *, drawn: bool = False) -> Document:
        """The whole report. With ``drawn``, it contains pictures, for formats that can show them."""
        from advisor.report.whole import document_of

        return document_of(self.state, self.request, self.catalog, self.change, drawn=drawn)

    @property
    def remark(self) -> str:
        """A remark for the sentence about the export if the result is weaker than a person expects; else empty."""
        from advisor.report.verdict import export_remark

        return export_remark(self.state)


@dataclass(frozen=True, slots=True)
class File:
    """A file to write. The message about it begins with ``title`` and ends with ``remark``; ``more`` are more lines."""

    title: str
    path: str
    content: Callable[[], str | bytes]
    remark: str = ""
    more: tuple[str, ...] = ()


class Format(ABC):
    """A file format for a session. The methods may raise AdvisorError."""

    id: ClassVar[str]  # the name of the format's module
    option: ClassVar[str]  # the command-line option that names the file
    brief: ClassVar[str]  # the format's description in the help of --export
    suffixes: ClassVar[tuple[str, ...]] = ()  # the file endings that select this format; none: all other endings
    order: ClassVar[int]  # the format's place in the app's list, from low to high
    needs_baseline: ClassVar[bool] = True
    missing: ClassVar[str] = ""  # the message for a session without content for this format, if that can happen
    offered: ClassVar[Offer | None] = None  # the entry in the app's list, if it is the same in every session

    def __init_subclass__(cls) -> None:
        cls.id = cls.__module__.rpartition(".")[2]

    @property
    def applies_settings(self) -> bool:
        """Whether the file applies the winning settings. Without such settings, it has no effect."""
        return self.option == "--export"

    def offer(self, outputs: Outputs) -> Offer | None:
        """The entry in the app's list; None if the app does not offer this format."""
        return self.offered

    def serves(self, outputs: Outputs, path: str) -> bool:
        """Whether a session with these outputs can write this format to a path."""
        return True

    @abstractmethod
    def files(self, found: Found, path: str) -> Iterable[File]:
        """The files to write, first the file at ``path``. Each content is made just before it is written."""

    def preview(self, found: Found) -> str:
        """The text that the app shows before the file is written."""
        offered = self.offer(found.outputs)
        assert offered, "only offered formats are previewed"
        content = next(iter(self.files(found, offered.default_name))).content()
        assert isinstance(content, str), "only text formats are offered"
        return content

    def verifiable(self, found: Found, path: str) -> Exported | None:
        """The result of ``to_verify``; None without winning settings, or if the settings need several processes.

        A file without settings has no effect to verify, and a trial has only one process.
        """
        from advisor.report.several_gpus import gpus_to_start

        settings = found.settings
        return self.to_verify(found, path) if settings and gpus_to_start(found.state, settings) == 1 else None

    def to_verify(self, found: Found, path: str) -> Exported | None:
        """The written file, if its settings can be applied to the target and timed; else None."""
        return Exported(path) if self.applies_settings else None

    def usage(self, name: str, found: Found) -> Sequence[str]:
        """Lines on how to use the file, or on why it has no effect."""
        if self.applies_settings and not found.settings:
            from advisor.report.verdict import no_result

            return f"no settings in it: {no_result(found.state)[0]}", "the reports show all measurements"
        return self.next_steps(name, found)

    def next_steps(self, name: str, found: Found) -> Sequence[str]:
        """Lines on how to use the file."""
        return (
            f"read {name}, or pass it on",
            f"measure again after changes: perf-advisor {found.request.target.command}",
        )
