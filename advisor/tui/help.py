"""The text of the help screen; the keys come from the registry of actions."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from advisor.tui.actions import VIEWS, Action, actions_of, global_actions
from advisor.tui.widgets.fact_list import FactList

WORDS = (
    ("baseline", "the trial with your present settings; every speed-up is against it"),
    ("candidate", "a recipe and one value to try"),
    ("trial", "the workload run under some settings, in a process of its own"),
    ("verdict", "faster, slower, no measurable difference, failed or skipped, always with the reason"),
    ("stack", "several settings applied together; effects do not add up, so it is measured as one"),
    ("noise floor", "the difference that identical runs show on this machine; what is inside it does not count"),
    ("numerics", "exact: bit-equal; close: rounding; changed: other results, which needs your consent"),
)
MARKS_TEXT = (
    ("▲", "$success", "faster"),
    ("▼", "$error", "slower"),
    ("≈", "", "no measurable difference"),
    ("✗", "$warning", "failed"),
    ("○", "", "skipped"),
    ("★", "$accent", "the stack, or part of it"),
    ("≠", "$error", "numerics that are not what the recipe declares"),
    ("!", "$warning", "unreliable: something outside disturbed the trial"),
    ("⇄", "$primary", "measured again, in turn with the baseline"),
    ("⧗", "$accent", "tried as soon as nothing else runs, as you asked"),
)
NUMBERS = """\
Steps run in blocks without synchronising in between; the headline is wall time per step. Warm-up goes on until \
the step time is steady and is reported apart, with the number of steps after which a slower start has paid back.

A speed-up is the ratio of samples per second to the baseline's, with a 95 % bootstrap interval over blocks: \
1.62x (1.60 to 1.64). The verdict is faster only when the whole interval clears the noise floor, which comes from \
repeats of the baseline and a control that does nothing. The stack, and a candidate \
that lies within reach of the noise, are measured in turn with the baseline, A B B A, so that drift cancels.

Memory is the peak that PyTorch reserved on the GPU (on a CPU, the process's peak resident memory). Numerics compare \
the first losses, outputs and weights with the baseline's under the same seed and batches; what rounding explains is \
close. A run in float64, where there is time and memory for it, shows how much that is.

Energy is what the whole GPU took while the blocks were timed, by its own counter, its idle draw included. The roof is \
what this machine reached in products of large matrices and in large copies."""


def help_sections() -> list[tuple[str, Content | FactList]]:
    """The sections as (title, body)."""
    others = (
        ("^p", "Command palette: every action by name, and the themes"),
        ("j k", "Down and up in lists; Enter opens the detail, Escape goes back"),
    )
    sections: list[tuple[str, Content | FactList]] = [
        ("Everywhere", _list([*(key_line(action) for action in global_actions()), *others]))
    ]
    for view in VIEWS:
        actions = actions_of(view.id)
        if actions:
            sections.append((f"{view.key} {view.title}", _list([key_line(action) for action in actions])))
    marks = [Content.assemble((sign, style), f" {text}") for sign, style, text in MARKS_TEXT]
    return [
        *sections,
        ("Words", _list(WORDS, 13)),
        ("Marks", Content("\n").join(marks)),
        ("How the numbers are made", Content(NUMBERS)),
    ]


def key_line(action: Action) -> tuple[str, str]:
    """An action's key as a person types it, and what it does."""
    return action.key_display or action.key, action.description


def _list(lines: Sequence[tuple[str, str]], width: int = 7) -> FactList:
    facts = FactList(label_width=width, label_style="bold $accent")
    facts.show(lines)
    return facts
