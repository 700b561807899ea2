"""The text of the help screen; the keys come from the registry of actions."""

from __future__ import annotations

from textual.content import Content

from advisor.tui.actions import VIEWS, Action, actions_of, global_actions

_KEY_WIDTH = 10
_SIGNS = {"question_mark": "?", "right_square_bracket": "]", "left_square_bracket": "["}

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
)
NUMBERS = """\
Steps run in blocks without synchronising in between; the headline is wall time per step. Warm-up goes on until \
the step time is steady and is reported apart, with the number of steps after which a slower start has paid back.

A speed-up is the ratio of samples per second to the baseline's, with a 95 % bootstrap interval over blocks: \
1.62x (1.60 to 1.64). The verdict is faster only when the whole interval clears the noise floor, which comes from \
repeats of the baseline and a control that does nothing. The stack is confirmed alternately with the baseline, \
A B B A, so that drift cancels.

Memory is the peak that PyTorch reserved on the GPU (on a CPU, the process's peak resident memory). Numerics compare \
the first losses or outputs with the baseline's under the same seed and batches."""


def help_sections() -> list[tuple[str, Content]]:
    """The sections as (title, text)."""
    sections = [
        (
            "Everywhere",
            _keys(global_actions())
            + Content("\n")
            + _line("^p", "Command palette: every action by name, and the themes"),
        )
    ]
    for view in VIEWS:
        actions = actions_of(view.id)
        text = Content(view.description)
        sections.append((f"{view.key} {view.title}", text + Content("\n") + _keys(actions) if actions else text))
    sections.append(("Words", Content("\n").join(_line(word, text, 13) for word, text in WORDS)))
    marks = [Content.assemble((sign, style), f" {text}") for sign, style, text in MARKS_TEXT]
    sections.append(("Marks", Content("   ").join(marks)))
    sections.append(("How the numbers are made", Content(NUMBERS)))
    return sections


def _keys(actions: list[Action]) -> Content:
    return Content("\n").join(_line(key_text(action), action.description) for action in actions)


def key_text(action: Action) -> str:
    """An action's key as a person types it."""
    first = action.key.split(",", 1)[0]
    return action.key_display or _SIGNS.get(first, first)


def _line(key: str, text: str, width: int = _KEY_WIDTH) -> Content:
    return Content.assemble((f"{key:<{width}}", "bold $accent"), text)
