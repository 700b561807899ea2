"""Random numbers that a step draws on the host: a graph repeats what they decided, so it matters whether they do."""

import pickle
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.portable.losses import undone
from advisor.portable.nested import tensors_of

# The operators whose numbers lie between 0 and 1.
UNIFORM = ("rand", "uniform_")
LARGEST_BELOW_1 = 1 - 2**-8  # also in half precision
DRAWS = "the step draws random numbers on the host, and a graph would repeat what they decided"


def host_generators() -> list[Any]:
    """The states of the random generators on the host: PyTorch's, Python's, and NumPy's where it is in use."""
    numpy = sys.modules.get("numpy")
    drawn_by_numpy = pickle.dumps(numpy.random.get_state(legacy=False)) if numpy else b""
    return [torch.get_rng_state().tolist(), random.getstate(), drawn_by_numpy]


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


def depends_on_draws(model: torch.nn.Module, call: Callable[[], Any]) -> bool:
    """Whether what a call of a model returns depends on uniform random numbers that it draws on the host.

    Many models draw one for each layer, and drop the layer where it is below a share, which is mostly 0. So the call
    runs twice, once with the least and once with the largest of such numbers, and is undone. True where it cannot run
    so, and where it draws others.
    """
    results = []
    for value in (0.0, LARGEST_BELOW_1):
        draws = FixedDraws(value)
        try:
            with undone(model):
                _, *others = host_generators()
                with draws:
                    results.append([tensor.detach() for tensor in tensors_of(call())])
                if draws.others or host_generators()[1:] != others:
                    return True
        except Exception:  # user code under a mode that few people run
            return True
    least, largest = results
    return len(least) != len(largest) or not all(map(torch.equal, least, largest))
