"""The random generators of the host: PyTorch's own, Python's, and NumPy's where it is in use."""

import contextlib
import pickle
import random
import sys
import typing

import torch


def generators_of_host() -> list[typing.Any]:
    """The generators that all code of a process draws from."""
    numpy: typing.Any = sys.modules.get("numpy")
    own = [torch.default_generator, typing.cast("typing.Any", random.random).__self__]
    return own if numpy is None else [*own, numpy.random.rand.__self__]


def is_generator(thing: typing.Any) -> bool:
    """Whether an object draws random numbers on the host."""
    return isinstance(thing, (torch.Generator, random.Random)) or not {"bit_generator", "_bit_generator"}.isdisjoint(
        dir(type(thing))
    )


class HostDraws:
    """The states of Python's random generator and of NumPy's, where it is in use."""

    def __init__(self) -> None:
        numpy: typing.Any = sys.modules.get("numpy")
        self.of_python = random.getstate()
        self.of_numpy = None if numpy is None else numpy.random.get_state(legacy=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostDraws) and self.numbers() == other.numbers()

    __hash__ = None  # type: ignore[assignment]

    def numbers(self) -> tuple[typing.Any, ...]:
        """The states as what can be compared."""
        return self.of_python, pickle.dumps(self.of_numpy)

    def put_back(self) -> None:
        """Give the generators these states."""
        random.setstate(self.of_python)
        if self.of_numpy is not None:
            sys.modules["numpy"].random.set_state(self.of_numpy)


class AllHostDraws(HostDraws):
    """The same with the state of PyTorch's generator of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.of_torch = torch.get_rng_state()

    def numbers(self) -> tuple[typing.Any, ...]:
        """The states as what can be compared."""
        return *super().numbers(), self.of_torch.tolist()

    def put_back(self) -> None:
        """Give the generators these states."""
        super().put_back()
        torch.set_rng_state(self.of_torch)


def seed_host(seed: int) -> None:
    """Seed the generators, from which datasets, samplers and transforms draw."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy: typing.Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


@contextlib.contextmanager
def own_draws_kept(generators: typing.Iterable[typing.Any]) -> typing.Iterator[None]:
    """Give random generators that somebody made their states back on leaving."""
    kept = [(put, get()) for get, put in map(access_to, generators)]
    try:
        yield
    finally:
        for put, state in kept:
            put(state)


def access_to(
    generator: typing.Any,
) -> tuple[typing.Callable[[], typing.Any], typing.Callable[[typing.Any], typing.Any]]:
    """The functions that return and set the state of a random generator of Python's, PyTorch's or NumPy's."""
    if isinstance(generator, torch.Generator):
        return generator.get_state, generator.set_state
    if isinstance(generator, random.Random):
        return lambda: random.Random.getstate(generator), lambda state: random.Random.setstate(generator, state)
    if hasattr(generator, "set_state"):
        return lambda: generator.get_state(legacy=False), generator.set_state
    bits = generator.bit_generator
    return lambda: bits.state, lambda state: setattr(bits, "state", state)


@contextlib.contextmanager
def draws_kept(*modules: torch.nn.Module) -> typing.Iterator[None]:
    """Give the generators of the host, and of the GPUs that modules are on, their states back on leaving."""
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    draws = HostDraws()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        draws.put_back()
