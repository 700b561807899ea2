"""View 4: the ranked recommendations, one at a time in detail; accept, reject, retry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from advisor.experiment.control import Decision
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.recipe import card
from advisor.records import Candidate, Recommendation
from advisor.report.conclusions import sweep_of
from advisor.report.evidence import sweep_caveats
from advisor.report.pictures import batch_chart, front_chart
from advisor.tui.context import Context
from advisor.tui.deciding import can_decide, values_of
from advisor.tui.keys import key
from advisor.tui.messages import Decided
from advisor.tui.text import DIM, waiting_text
from advisor.tui.views import advice_text
from advisor.tui.views.base import PLOT, DecidingView, highlighted
from advisor.tui.widgets.fact_list import fact_lines
from advisor.tui.widgets.lists import ChoiceList, Placeholder
from advisor.tui.widgets.picture_panel import Picture, PicturePanel
from advisor.tui.widgets.texts import TextPane, look_same, show_text, show_titles

_EMPTY = "Settings that help appear here, ranked, as soon as trials have shown it."
_WIDE = 100


class AdviceView(DecidingView):
    """The list on the left; on the right the detail, or the plot in its place."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "advice.check",
            "v",
            "check",
            "Check",
            "Put the recipe into the stack, or take it out: what its check box says, the other way round",
            show=False,
        ),
        PLOT,
        Binding("escape", "leave_detail", "Back", show=False),
        Binding("j", "step(1)", "Next", show=False),
        Binding("k", "step(-1)", "Previous", show=False),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__(context, id="advice")
        self._ids: list[str] = []
        self._drawn: object = None

    def compose(self) -> ComposeResult:
        yield Placeholder(Content.styled(_EMPTY, DIM), id="advice-empty")
        with Horizontal(id="advice-columns", classes="frame"):
            yield ChoiceList(id="advice-list", classes="panel", markup=False)
            yield TextPane(id="detail", classes="panel")
            yield PicturePanel()

    def on_mount(self) -> None:
        self.query_one("#detail").border_title = "Recommendation"

    def show(self) -> None:
        items = self.context.state.recommendations
        finished = self.context.state.finished is not None
        nothing = advice_text.nothing_helped(self.context.state) if finished and self.context.state.baseline else ""
        empty = nothing or waiting_text(self.context.state, _EMPTY)
        show_text(self.query_one("#advice-empty", Static), Content.styled(empty, DIM))
        self.query_one("#advice-empty").display = not items
        self.query_one("#advice-columns").display = bool(items)
        self._show_list(items)
        self._show_detail()
        self.show_pictures()

    @property
    def _list(self) -> OptionList:
        return self.query_one("#advice-list", OptionList)

    def _show_list(self, items: tuple[Recommendation, ...]) -> None:
        decisions, by = self.context.state.decisions, self.context.state.yardstick
        prompts = [
            advice_text.list_entry(
                item,
                decisions.get(item.recipe),
                by,
                wide=self.width >= _WIDE,
                value=self.context.state.accepted_values.get(item.recipe),
            )
            for item in items
        ]
        decided = sum(item.recipe in decisions for item in items)
        signs = "" if self.width >= _WIDE else advice_text.signs_text(prompts)
        show_titles(self._list, f"Ranked · {decided} of {len(items)} decided", signs)
        ids = [item.recipe for item in items]
        if ids == self._ids:
            for recipe_id, prompt in zip(ids, prompts, strict=True):
                if not look_same(self._list.get_option(recipe_id).prompt, prompt):
                    self._list.replace_option_prompt(recipe_id, prompt)
            return
        chosen = self._chosen_id
        self._ids = ids
        self._list.clear_options()
        self._list.add_options(Option(prompt, id=recipe_id) for recipe_id, prompt in zip(ids, prompts, strict=True))
        if ids:
            self._list.highlighted = ids.index(chosen) if chosen in ids else 0

    @property
    def _chosen_id(self) -> str:
        position = self._list.highlighted
        return self._ids[position] if position is not None and position < len(self._ids) else ""

    @property
    def chosen(self) -> Recommendation | None:
        """The highlighted recommendation."""
        return next((item for item in self.context.state.recommendations if item.recipe == self._chosen_id), None)

    @property
    def subject(self) -> str:
        return self.chosen.title if self.chosen else ""

    @on(OptionList.OptionSelected)
    def _on_option_selected(self) -> None:
        """Enter goes into the detail; Escape comes back."""
        self.query_one("#detail").focus()

    def action_leave_detail(self) -> None:
        """Go back to the list."""
        self._list.focus()

    def action_step(self, step: int) -> None:
        """Choose a neighbour in the list while the detail is read."""
        if step > 0:
            self._list.action_cursor_down()
        else:
            self._list.action_cursor_up()

    @on(OptionList.OptionHighlighted)
    def _on_option_highlighted(self) -> None:
        self._show_detail()
        self.show_pictures()
        self.refresh_bindings()

    def _show_detail(self) -> None:
        item = self.chosen
        if item is None:
            return
        decision = self.context.state.decisions.get(item.recipe)
        recipe = self.context.recipe(item.recipe)
        state = self.context.state
        points = sweep_of(state) if item.recipe == BATCH_SIZE else ()
        caveats = tuple(sweep_caveats(state)) if points else ()
        drawn = (item, decision, recipe, state.baseline, state.findings, points, caveats)
        if drawn == self._drawn:
            return
        detail = self.query_one("#detail", TextPane)
        if not isinstance(self._drawn, tuple) or self._drawn[0] != item:
            detail.scroll_home(animate=False)
        self._drawn = drawn
        title = advice_text.title_text(item, decision, state.accepted_values.get(item.recipe))
        facts, code = advice_text.effect_facts(item, self.context), self._code(item.record.candidate)
        about = advice_text.card_text(card(recipe)) if recipe else Content("")

        def build(width: int) -> Content:
            sweep = (
                [*_section("Batch sizes"), advice_text.sweep_text(points, state.mode, width, caveats)] if points else []
            )
            coloured = [Content(" ") + line.pad_right(width) for line in code.wrap(width - 2)]
            block = Content("\n").join(line.truncate(width).stylize_before("on $surface") for line in coloured)
            parts = [title, Content(""), *fact_lines(facts, width), *sweep, *_section("The code"), block]
            return Content("\n").join([*parts, *_section("About this setting"), about])

        detail.show(build)

    def _code(self, candidate: Candidate) -> Content:
        code = self._code_of(candidate)
        if not code:
            return Content.styled("The recipe is not in the catalogue of this session.", DIM)
        return highlighted(code, "python")

    def _code_of(self, candidate: Candidate) -> str:
        recipe = self.context.recipe(candidate.recipe)
        if recipe is None or not recipe.accepts(candidate.value):  # a damaged record, or another version's
            return ""
        return recipe.code(candidate.value).rstrip()

    def text_to_copy(self) -> str:
        return self._code_of(self.chosen.record.candidate) if self.chosen else ""

    def can(self, name: str) -> bool:
        """A decision that is taken already cannot be taken again."""
        item = self.chosen
        if name == "plot":
            return item is not None and bool(self.pictures)
        if name == "undo":
            return self.context.can_undo
        if name in ("step", "leave_detail"):
            return self.query_one("#detail").has_focus
        if item is None or (name == "retry" and self.context.recorded):
            return False
        if name in ("accept", "check"):  # another value than the one that is accepted may be wanted
            return self.context.state.can_decide(item.recipe)
        return name != "reject" or can_decide(self.context.state, item.record.candidate, Decision.REJECTED)

    @property
    def trial(self) -> str:
        return self.chosen.record.candidate.name if self.chosen else ""

    def decide(self, decision: Decision) -> None:
        if self.chosen is None:
            return
        recipe = self.chosen.recipe
        values = values_of(self.context.state, recipe)
        if decision is Decision.ACCEPTED and len(values) > 1:
            self._ask_for_value(self.chosen, values)
        else:
            self._send(Decided(recipe, decision))

    def action_check(self) -> None:
        """Turn the check box round; a consent that has changed nothing yet is taken back."""
        item = self.chosen
        if item is None:
            return
        recipe = item.recipe
        decision = self.context.state.decisions.get(recipe)
        if decision is Decision.ACCEPTED and not item.in_stack:
            self.post_message(Decided(recipe, None))
        else:
            self.decide(Decision.REJECTED if advice_text.is_checked(item, decision) else Decision.ACCEPTED)

    def _send(self, message: Decided) -> None:
        """Ask for a decision, and go on to the next recommendation that has none."""
        self.post_message(message)
        place = self._ids.index(message.recipe_id)
        after = [*self._ids[place + 1 :], *self._ids[:place]]
        undecided = next((recipe for recipe in after if recipe not in self.context.state.decisions), None)
        if undecided is not None:
            self.choose_recipe(undecided)

    def _ask_for_value(self, item: Recommendation, values: Sequence[Candidate]) -> None:
        """Ask which value of a recipe to accept."""
        from advisor.tui.screens import PickScreen

        names = [candidate.name for candidate in values]
        best = names.index(item.record.candidate.name) if item.record.candidate.name in names else 0

        def accept(position: int | None) -> None:
            if position is not None:
                chosen = values[position]
                self._send(Decided(chosen.recipe, Decision.ACCEPTED, chosen.value))

        title = f"Accept one value: {item.title}"
        self.app.push_screen(PickScreen(title, advice_text.value_lines(values, self.context.state), best), accept)

    def choose_recipe(self, recipe: str) -> None:
        if recipe in self._ids:
            self._list.highlighted = self._ids.index(recipe)

    def make_room(self, *, pictured: bool) -> None:
        self.query_one("#detail").display = not pictured

    def make_pictures(self) -> list[Picture]:
        state, record = self.context.state, self.chosen.record if self.chosen else None
        front = front_chart(state, record.settings if record and record.alone else None)
        batch = batch_chart(state)
        drawn = [Picture(front, advice_text.front_text(state))] if front else []
        return [*drawn, *([Picture(batch)] if batch else [])]

    def first_focus(self) -> Widget:
        return self._list if self._ids else self.query_one(Placeholder)


def _section(title: str) -> list[Content]:
    return [Content(""), Content.styled(title, "bold $accent")]
