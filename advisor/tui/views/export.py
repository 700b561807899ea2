"""View 4: choose a format, look at the file and save it; the view then says how to use the file."""

import asyncio
from contextlib import suppress
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from advisor.errors import AdvisorError, UsageError
from advisor.experiment.request import Outputs
from advisor.experiment.state import SessionState
from advisor.export.files import check_replaceable, write_atomically
from advisor.export.format import Offer
from advisor.export.formats import FORMATS, format_of
from advisor.figures.formatting import printable
from advisor.files.paths import is_file
from advisor.report.document import Listing, section
from advisor.report.figures import file_finding
from advisor.tui.context import Context
from advisor.tui.controller import Controller
from advisor.tui.keys import key
from advisor.tui.text import waiting_text
from advisor.tui.views.base import View
from advisor.tui.widgets.texts import TextPane, show_text

_EMPTY = "There is nothing to export before the baseline is measured."
# The most lines of a file in the preview. A Python file may have thousands; colouring them takes seconds.
_MOST_LINES = 200


class ChoiceList(OptionList):
    """Textual's list, with ``j`` and ``k`` as further keys.

    Textual 8.2 ends with a KeyError if a page is turned before the list is laid out (by a key held down).
    """

    BINDINGS = [Binding("j", "cursor_down", "Down", show=False), Binding("k", "cursor_up", "Up", show=False)]

    def action_page_down(self) -> None:
        with suppress(KeyError):
            super().action_page_down()  # type: ignore[no-untyped-call]

    def action_page_up(self) -> None:
        with suppress(KeyError):
            super().action_page_up()  # type: ignore[no-untyped-call]


def offers(outputs: Outputs) -> tuple[Offer, ...]:
    """The formats on offer: first the diffs of the person's own file, then the others in the registry's order."""
    found = [offer for each in FORMATS if (offer := each.offer(outputs))]
    return tuple(sorted(found, key=lambda offer: offer.language != "diff"))


class ExportView(View):
    """Formats on the left; on the right the preview, under it the path and the button, then the next steps."""

    number, title = "4", "Export"
    about = "The change of your script or config, settings, Python code or a report"

    BINDINGS = [
        key("export.save", "s", "save", "Save", "Write the selected format to the path shown"),
        key("export.overwrite", "o", "overwrite", "Overwrite", "Replace the file of that name"),
        key("export.path", "f", "path", "File", "Edit the path to write to"),
        key("view.back", "escape", "leave_path", "Back", "Go back to the list", key_display="esc"),
    ]

    def __init__(self, context: Context, controller: Controller) -> None:
        super().__init__(context, controller)
        self._list = ChoiceList(id="formats", classes="panel", markup=False)
        self._preview, self._next_steps = TextPane(id="preview", classes="panel"), Static(id="next-steps")
        self._path = Input(id="path", placeholder="where to write the file", compact=True)
        self._formats = offers(context.outputs)
        self._paths = {item.id: item.default_name for item in self._formats}
        self._named = ""  # the format whose path is in the input
        self._in_the_way: Path | None = None  # an existing file at the path to write to
        self._asked: tuple[str, int] | None = None  # the format and the version of the latest preview, ready or not

    def compose(self) -> ComposeResult:
        with Horizontal(id="export-columns", classes="frame"):
            yield self._list
            with Vertical(id="export-right", classes="frame"):
                yield self._preview
                with Horizontal(id="save-row", classes="frame"):
                    yield self._path
                    yield Button("Save", id="save", variant="primary", compact=True, tooltip="Write the file (key s)")
                yield self._next_steps

    def on_mount(self) -> None:
        self._list.border_title = "Write"
        self._path.tooltip = "The file to write (key f); Enter saves, Escape goes back to the formats"
        self._list.add_options(Option(Content.styled(item.title, "bold"), id=item.id) for item in self._formats)
        self._list.highlighted = 0

    @property
    def chosen(self) -> Offer:
        """The highlighted format."""
        return self._formats[self._list.highlighted or 0]

    def on_show(self) -> None:
        """Read the user's own files again: they may have changed while another view was shown."""
        self.show()

    def show(self) -> None:
        self.query_one("#save-row").display = self._next_steps.display = self.can("save")
        self._show_next_steps()
        if self.context.state.baseline is None:
            self._asked = None
            self._preview.show((section("", waiting_text(self.context.state, _EMPTY)),))
            return
        wanted = (self.chosen.id, self.context.version)
        # During the session, only an event makes a new preview. After it, the user's own files may change at any time.
        if self._asked != wanted or self.context.state.finished is not None:
            self._asked = wanted
            self._show_preview(self.chosen, wanted)

    @work(exclusive=True, exit_on_error=False, group="preview")
    async def _show_preview(self, chosen: Offer, wanted: tuple[str, int]) -> None:
        """Write a preview in a thread, as the first Python file takes up to two seconds, and draw it."""
        text, language = await asyncio.to_thread(self._written_preview, chosen, self.context.state.snapshot())
        if wanted == self._asked:
            self._preview.border_title = Content(chosen.title)
            self._preview.border_subtitle = Content(chosen.description)
            lines = text.rstrip("\n").split("\n")
            left = len(lines) - _MOST_LINES
            more = f"… and {left:,} more lines: s writes all" if left > 0 else ""
            self._preview.show((section("", Listing("\n".join(lines[:_MOST_LINES]), language), more),))

    def _show_next_steps(self) -> None:
        """Show the key that writes the file, or the speed of a plain loop with it; then the format's instructions."""
        if not self.display:
            return
        chosen, found = self.chosen, self.context.state.verification
        name = self._paths[chosen.id] or chosen.default_name
        stays = "; your own file stays" if chosen.language == "diff" else ""
        first = Content.assemble(("1  s", "bold $accent"), f" writes {name}{stays}")
        if found and Path(found.path).name == Path(name).name:
            agrees, does = file_finding(self.context.state, found)
            worked = Content.styled(f"✓ {does}", "$success")
            first = worked if agrees else first + Content.styled(f"  ! {does}", "$warning")
        after = format_of(chosen.id).usage(name, self.context.found(self.context.state))
        lines = (Content(f"{number}  {line}") for number, line in enumerate(after, start=2))
        show_text(self._next_steps, Content("\n").join([first, *lines]))

    def _written_preview(self, chosen: Offer, state: SessionState) -> tuple[str, str]:
        """The file's text and its language."""
        try:
            text = printable(format_of(chosen.id).preview(self.context.found(state)))
        except AdvisorError as error:
            return f"{error.message}\n{error.hint}", "text"
        except (OSError, ValueError, LookupError) as error:
            return f"This cannot be previewed: {error}", "text"
        return text, chosen.language

    @on(OptionList.OptionHighlighted, "#formats")
    def _on_format_highlighted(self) -> None:
        self._named, self._path.value = self.chosen.id, self._paths[self.chosen.id]
        self._in_the_way = None
        self._preview.scroll_home(animate=False)
        self.refresh_bindings()
        if self.display:  # the first format is highlighted while the view is still hidden
            self.show()

    @on(Input.Changed, "#path")
    def _on_path_changed(self) -> None:
        self._in_the_way = None
        self._paths[self._named] = self._path.value.strip()
        self._show_next_steps()

    @on(Input.Submitted, "#path")
    @on(Button.Pressed, "#save")
    def action_save(self) -> None:
        """Write the file. If it exists already, ask first."""
        if not self.can("save"):
            return
        where = self._paths[self.chosen.id]
        if not where:
            self.notify("Give a path to write to.", severity="warning")
            self.action_path()
            return
        path = Path(where).expanduser()
        own = self.context.outputs.config_path
        if own and path.resolve() == Path(own).resolve():
            self.notify(f"{path.name} is your own config. Give the copy another name.", severity="error")
        elif is_file(path):
            self._in_the_way, owner = path, ""
            try:
                check_replaceable(path, self.context.request.target, "")
            except UsageError as error:  # the file is not ours, or has the settings of another target
                owner = f" ({error.message.rstrip('.')})"
            self.notify(f"{path} exists already{owner}: o overwrites it, f gives another name.")
            self.refresh_bindings()
        else:
            self._write(self.chosen, path)

    def action_overwrite(self) -> None:
        """Replace the existing file at the path."""
        if self._in_the_way:
            self._write(self.chosen, self._in_the_way)

    def _write(self, chosen: Offer, path: Path) -> None:
        self._in_the_way = None
        try:
            for file in format_of(chosen.id).files(self.context.found(self.context.state), str(path)):
                write_atomically(file.path, file.content())
        except AdvisorError as error:
            self.notify(error.hint, title=error.message, severity="error")
        except (OSError, ValueError, LookupError) as error:
            self.notify(str(error), title="Nothing was written", severity="error")
        else:
            self.notify(str(path), title=f"{chosen.title} saved")
            self.context.saved.append(str(path))
            self.controller.verify(chosen.id, path)
            self._asked = None
            self.show()

    def action_path(self) -> None:
        """Put the cursor into the path."""
        self._path.focus()

    def action_leave_path(self) -> None:
        """Go back to the formats."""
        self._list.focus()

    def can(self, name: str) -> bool:
        """Whether a key does anything now: saving needs a measured baseline."""
        if name == "leave_path":
            return not self._list.has_focus
        if name == "overwrite":
            return self._in_the_way is not None
        return self.context.state.baseline is not None

    def first_focus(self) -> Widget:
        return self._list
