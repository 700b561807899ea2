"""What a run leaves behind: notes, states, warnings, or the way in which it ended early."""

from __future__ import annotations

import random
import re
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from process_state import state_put_back

import advisor
from advisor.records import Value
from loops.register import Loop
from loops.runs import Arithmetic, Note, Notebook, Run, TunedRun, arithmetic_of, copied

# What a refusal of the product looks like: its own exception, or one that its own code raises with a sentence.
_HOMES = (str(Path(advisor.__file__).parent), str(Path(advisor.__file__).parents[1] / "recipes"))
_REFUSALS = (ValueError, TypeError, RuntimeError, NotImplementedError)
# How prepare() says that it leaves out a setting.
_LEFT_OUT = " is left out: "
# Warnings that say nothing about the loop: they come and go with versions, not with what the loop does.
_UNRELATED = (
    "TF32",
    "TensorFloat32",
    "Online softmax",
    "CUDA initialization",
    "is deprecated",
    "Not enough SMs",
    "pynvml",
    "multi-threaded",  # a fork for workers: CUDA's threads run
)


@dataclass(frozen=True, slots=True)
class Record:
    """What a run of a loop left behind."""

    notes: Mapping[str, list[Note]] = field(default_factory=dict)
    states: Mapping[str, Any] = field(default_factory=dict)
    starts: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    warnings: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()
    refused: str = ""
    crashed: str = ""


def run_plain(
    loop: Loop, device: torch.device, arithmetic: Arithmetic | None = None, *, device_seed: int = 0
) -> Record:
    """The record of a loop as written, on plain PyTorch, in the arithmetic asked for.

    Another ``device_seed`` changes what a GPU draws, and nothing that the CPU draws.
    """
    notebook = Notebook()
    return _recorded(loop, Run(device, notebook, arithmetic or Arithmetic()), notebook, device_seed)


def run_tuned(loop: Loop, device: torch.device, settings: Mapping[str, Value], direction: str = "tuned") -> Record:
    """The record of a loop under settings; ``direction`` says who runs the parts of one that stops and goes on."""
    notebook = Notebook()
    settings = {**settings, **loop.always}
    first, _, second = direction.partition(" to ")
    arithmetic = arithmetic_of(settings)
    kinds = {"plain": lambda: Run(device, notebook, arithmetic), "tuned": lambda: TunedRun(device, notebook, settings)}
    run = kinds[first]()
    run.resumed = kinds[second]() if second else None
    return _recorded(loop, run, notebook)


def _recorded(loop: Loop, run: Run, notebook: Notebook, device_seed: int = 0) -> Record:
    with state_put_back(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.set_num_threads(1)  # tiny tensors: more threads wait for one another
        torch.backends.cudnn.allow_tf32 = False  # or every order of sums would round as TensorFloat-32 does
        run.arithmetic.set_products()
        _seed(device_seed)
        try:
            left = loop.body(run)
        except pytest.skip.Exception:
            raise
        except Exception as error:  # a run that fails is a result
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return Record(refused=text) if _is_refusal(error) else Record(crashed=text)
        starts = {name: notebook.start_of(item) for name, item in left.items()}
        states = {name: copied(item.state_dict()) for name, item in left.items()}
    texts = frozenset(filter(None, map(_warning_text, seen)))
    left_out = frozenset(text for text in texts if _LEFT_OUT in text)
    return Record(notebook.notes, states, starts, texts - left_out, left_out)


def _seed(device_seed: int) -> None:
    torch.manual_seed(0)
    if device_seed:
        torch.cuda.manual_seed_all(device_seed)
    random.seed(0)


def _is_refusal(error: Exception) -> bool:
    if isinstance(error, advisor.errors.AdvisorError):
        return True
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, _REFUSALS) and str(Path(raised_in).resolve()).startswith(_HOMES)


def _warning_text(warning: warnings.WarningMessage) -> str:
    """A warning's kind and text; empty for one that says nothing about the loop. Numbers may differ."""
    text = " ".join(str(warning.message).split())
    if any(part in text for part in _UNRELATED):
        return ""
    return re.sub(r"\d+(\.\d+)?", "N", f"{warning.category.__name__}: {text[:160]}")
