"""The compiler's remarks: graph breaks, and compilations while steps were being timed."""

import sys

from advisor.figures.formatting import counted, format_first

_REASONS_SHOWN = 3
_LONGEST_REASON = 120
_LIMIT = "recompile limit exceeded"
_SAYS_WHY = "TORCH_LOGS=recompiles shows the reasons"


def compiled_frames() -> int:
    """The number of frames that have been compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo.counters["frames"]["total"] if dynamo is not None else 0


def compilation_notes(warm: int) -> tuple[str, ...]:
    """Notes on what was compiled in this process. ``warm`` counts the compiled frames at the end of the warm-up."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    frames = compiled_frames()
    if dynamo is None or not frames:
        return ()
    notes = []
    problems = {**dynamo.counters["graph_break"], **dynamo.counters["unimplemented"]}
    breaks = [_headline(problem) for problem in problems if _LIMIT not in problem]
    if count := max(len(breaks), len(dynamo.counters["resumes"])):
        distinct = format_first(list(dict.fromkeys(filter(None, breaks))), _REASONS_SHOWN, "; ")
        notes.append(f"{counted(count, 'graph break')}{f': {distinct}' if distinct else ''}")
    if again := frames - warm:
        times = "once" if again == 1 else f"{again} times"
        notes.append(f"recompiled {times} after the warm-up: {_SAYS_WHY}")
    if len(breaks) < len(problems):
        notes.append(
            f"the compiler gave up on a function that it had compiled too often ({_SAYS_WHY}); that runs eagerly: "
            "values that change from step to step belong into tensors"
        )
    return tuple(notes)


def _headline(text: str) -> str:
    line = text.strip().partition("\n")[0].strip()
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"
