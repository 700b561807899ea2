"""The files that the app writes: their formats and contents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from advisor.errors import UsageError
from advisor.experiment.outputs import Outputs
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.export.files import write_atomically
from advisor.export.format import Found, Offer
from advisor.export.formats import FORMATS, format_of
from advisor.figures.formatting import printable
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.records import Exported


class FileExporter:
    """Writes a session's files, the same as the command line's options.

    Every method may raise ``AdvisorError`` with a message and a hint. ``catalog`` is given as soon as it is loaded: to
    load it here as well would make a key wait.
    """

    def __init__(self, request: Request, outputs: Outputs) -> None:
        self._request = request
        self._outputs = outputs
        self.catalog: Catalog | None = None

    def formats(self) -> Sequence[Offer]:
        """The formats on offer: first those that show a diff of the person's own file, then in the registry's order."""
        offers = [offer for each in FORMATS if (offer := each.offer(self._outputs))]
        return sorted(offers, key=lambda offer: offer.language != "diff")

    def preview(self, format_id: str, state: SessionState) -> str:
        """The file's text; for the config a unified diff."""
        return printable(format_of(format_id).preview(self._found(state)))

    def save(self, format_id: str, path: Path, state: SessionState) -> Path:
        """Write the file atomically. The user's own config is not overwritten: the patched one is a copy."""
        config = self._outputs.config_path
        if config is not None and path.resolve() == Path(config).resolve():
            raise UsageError(f"{path.name} is your own config.", "Give the copy another name.")
        for file in format_of(format_id).files(self._found(state), str(path)):
            write_atomically(file.path, file.content())
        return path

    def next_steps(self, format_id: str, name: str, state: SessionState) -> Sequence[str]:
        """The next steps for a file of this name, a line each."""
        return format_of(format_id).usage(name, self._found(state))

    def to_verify(self, format_id: str, path: Path, state: SessionState) -> Exported | None:
        """The file as the format wants it verified; None with --no-verify."""
        return format_of(format_id).verifiable(self._found(state), str(path)) if self._outputs.verify else None

    def _found(self, state: SessionState) -> Found:
        catalog = self.catalog or load_catalog(self._request.recipe_folders)
        return Found(state, self._request, self._outputs, catalog)
