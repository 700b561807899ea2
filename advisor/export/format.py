"""The contract of an export format, for the command line, the app and the palette.

Each format is a module in ``formats/`` that defines a subclass of ``Format`` and imports nothing heavy at its top.
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
    """A format as the app lists it. ``language`` colours the preview, such as ``yaml`` or ``diff``."""

    id: str
    title: str
    default_name: str
    language: str = "text"
    description: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A session and all that a format may need to write it."""

    state: SessionState
    request: Request
    outputs: Outputs
    catalog: Catalog

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that won, as far as their recipes are still there."""
        from advisor.report.figures import settings_to_export

        return dict(self.catalog.without_removed(settings_to_export(self.state)))

    @property
    def speedup(self) -> str:
        """The speed-up of the settings in one line; empty where they were not measured together."""
        from advisor.export.settings_file import stack_line

        stack = self.state.stack
        measured = stack is not None and stack.comparison and stack.settings == self.settings
        return stack_line(stack, self.state) if stack and measured else ""

    @property
    def launch_lines(self) -> tuple[str, ...]:
        """Lines that say how a script with these settings is started, where it needs several processes."""
        from advisor.report.several_gpus import launch_lines

        return tuple(launch_lines(self.state, self.settings))

    @property
    def change(self) -> str:
        """The change of the user's file as a diff; empty for no change, or if the places to change are not known."""
        from advisor.export.formats import format_of

        known = self.outputs.own_file and self.settings and self.state.facts and self.state.facts.workload.places
        return format_of("script").preview(self) if known else ""

    def report(self, *, drawn: bool = False) -> Document:
        """The whole report; ``drawn``: with its pictures, for a format that can draw."""
        from advisor.report.whole import document_of

        return document_of(self.state, self.request, self.catalog, self.change, drawn=drawn)

    @property
    def remark(self) -> str:
        """The end of the sentence about exported settings that promise less than a person expects; else empty."""
        from advisor.report.verdict import export_remark

        return export_remark(self.state)


@dataclass(frozen=True, slots=True)
class File:
    """One file to write. ``title`` begins the sentence about it, ``remark`` ends it, ``more`` are lines after it."""

    title: str
    path: str
    content: Callable[[], str | bytes]
    remark: str = ""
    more: tuple[str, ...] = ()


class Format(ABC):
    """A file format for a session. Methods may raise AdvisorError."""

    id: ClassVar[str]  # its module's name
    option: ClassVar[str]  # the command-line option that names its file
    brief: ClassVar[str]  # the word for it in the help of --export
    suffixes: ClassVar[tuple[str, ...]] = ()  # of paths by which the option means it; without any, of all others
    order: ClassVar[int]  # its place in the app's list, from low to high
    needs_baseline: ClassVar[bool] = True
    missing: ClassVar[str] = ""  # the sentence that a session has nothing for it, where that can be
    offered: ClassVar[Offer | None] = None  # its entry in the app's list, where it has one in every session

    def __init_subclass__(cls) -> None:
        cls.id = cls.__module__.rpartition(".")[2]

    @property
    def applies_settings(self) -> bool:
        """Whether the file is about the settings that won: without any it changes nothing."""
        return self.option == "--export"

    def offer(self, outputs: Outputs) -> Offer | None:
        """The entry in the app's list; None where the app does not offer it."""
        return self.offered

    def serves(self, outputs: Outputs, path: str) -> bool:
        """Whether a session with these outputs writes this format to a path."""
        return True

    @abstractmethod
    def files(self, found: Found, path: str) -> Iterable[File]:
        """The files to write, the one at ``path`` first. The content of each is made just before it is written."""

    def preview(self, found: Found) -> str:
        """The text that the app shows before it is written."""
        offered = self.offer(found.outputs)
        assert offered, "only what is offered is previewed"
        content = next(iter(self.files(found, offered.default_name))).content()
        assert isinstance(content, str), "only text is offered"
        return content

    def verifiable(self, found: Found, path: str) -> Exported | None:
        """The written file as ``to_verify`` has it; None where no settings won, or where they need several processes.

        Without settings a file changes nothing, and a trial is one process.
        """
        from advisor.report.several_gpus import gpus_to_start

        settings = found.settings
        return self.to_verify(found, path) if settings and gpus_to_start(found.state, settings) == 1 else None

    def to_verify(self, found: Found, path: str) -> Exported | None:
        """The written file, where it holds settings that can be applied to the target and timed."""
        return Exported(path) if self.applies_settings else None

    def usage(self, name: str, found: Found) -> Sequence[str]:
        """Lines that say what to do with the file, or why it does nothing."""
        if self.applies_settings and not found.settings:
            from advisor.report.verdict import no_result

            return f"no settings in it: {no_result(found.state)[0]}", "the reports have all that was measured"
        return self.next_steps(name, found)

    def next_steps(self, name: str, found: Found) -> Sequence[str]:
        """Lines that say what to do with the file."""
        return (
            f"read {name}, or pass it on",
            f"measure again after changes: perf-advisor {found.request.target.command}",
        )
