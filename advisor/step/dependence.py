"""Whether a step depends on values that a graph would repeat: the host's random numbers, clocks, tensors left behind.

A step that depends on none is captured, though it draws numbers, takes the time or replaces tensors each time.
"""

from collections.abc import Callable, Sequence
from types import CellType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.step.clocks import DATES, Clocks
from advisor.step.host_draws import HostDraws
from advisor.step.layouts import have_equal_values
from advisor.step.nested import tensors_of
from advisor.step.places import Place, Values, put_at
from advisor.step.undone import undone

# The operators whose numbers lie between 0 and 1.
UNIFORM = ("rand", "uniform_")
LARGEST_BELOW_1 = 1 - 2**-8  # also in half precision
SMALLEST_ABOVE_0 = 2**-24  # also in half precision; torch.rand draws 0 itself once in 16 million numbers
# Seconds by which clocks are put forward, some 30 years: beyond all deadlines.
FORWARD_S = 1_000_000_000
DRAWS = "the step draws random numbers on the host, and a graph would repeat what they decided"


class FixedDraws(TorchDispatchMode):
    """Gives all uniform random numbers of the host one value; ``others`` tells whether others were drawn."""

    def __init__(self, value: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.value = value
        self.others = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        drawn = [tensor for tensor in tensors_of(result) if tensor.device.type == "cpu"]
        if drawn and torch.Tag.nondeterministic_seeded in func.tags:
            if func.overloadpacket.__name__ in UNIFORM:
                result.fill_(self.value)
            else:
                self.others = True
        return result


def depends_on_draws(model: torch.nn.Module, loss: Any, call: Callable[[], Any]) -> bool:
    """Whether the result of a call of a model, and of its loss if any, depends on uniform draws on the host.

    Many models draw one for each layer, and drop the layer where it is not above a share, which is mostly 0. So the
    call runs twice, once with the least and once with the largest of such numbers, and is undone. True where it cannot
    run so, and where it draws others.
    """
    results = []
    for value in (SMALLEST_ABOVE_0, LARGEST_BELOW_1):
        draws = FixedDraws(value)
        try:
            with undone(model, loss):
                others = HostDraws()
                with draws:
                    results.append(computed(model, call))
                if draws.others or HostDraws() != others:
                    return True
        except Exception:  # user code under a mode that few people run
            return True
    return are_different(*results)


def depends_on_clocks(model: torch.nn.Module, loss: Any, call: Callable[[], Any], places: Sequence[Place]) -> bool:
    """Whether the result of a call of a model, and of its loss if any, depends on the clocks in these places.

    Many take the time for a person to read. So the call runs twice, the second time with the clocks put forward, and is
    undone. True where it cannot run so, and where it asks for a date.
    """
    results = []
    for forward_s in (0, FORWARD_S):
        try:
            with undone(model, loss), Clocks(places, forward_s) as clocks:
                results.append(computed(model, call))
        except Exception:  # a place may be one that nothing can be put into
            return True
        if not clocks.asked or any(clock in DATES for clock in clocks.asked):
            return bool(clocks.asked)
    return are_different(*results)


def depends_on_values(model: torch.nn.Module, loss: Any, call: Callable[[], Any], places: Sequence[Place]) -> bool:
    """Whether the result of a call of a model and its loss depends on values that an earlier call left in these places.

    A model may keep a tensor in an attribute to use it further down: it writes before it reads. So the call runs twice,
    once as it is and once without these values, and is undone. True where it cannot run without them.
    """
    results, values = [], Values(places)
    try:
        for hidden in ((), places):
            with undone(model, loss):
                take_out(hidden)
                results.append(computed(model, call))
    except Exception:  # most of all for a name that is missing
        return True
    finally:
        values.put_back()
    return are_different(*results)


def computed(model: torch.nn.Module, call: Callable[[], Any]) -> list[torch.Tensor]:
    """The result of a call, and the buffers of the model after it."""
    return [tensor.detach().clone() for tensor in (*tensors_of(call()), *model.buffers())]


def are_different(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Whether two lists of tensors differ in any value."""
    return len(some) != len(others) or not all(map(have_equal_values, some, others))


def take_out(places: Sequence[Place]) -> None:
    """Take the values out of these places."""
    for holder, key in places:
        if isinstance(holder, dict):
            holder.pop(key, None)
        elif isinstance(holder, CellType):
            del holder.cell_contents
        else:
            put_at(holder, key, None)
