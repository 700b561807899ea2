"""Two records of one loop compared: what must be equal, and what may differ by rounding."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loops.records import Record

# Learning rates, momenta and the like are computed by the same code in both runs; a rate may be kept in float32.
_OPTIONS = 1e-6
# A tensor's share of the mean movement below which it is measured by that share: what hardly moves is all rounding.
_LEAST_MOVEMENT = 0.1
_TINY = 1e-12
# What a scheduler keeps of the losses that it is given (ReduceLROnPlateau): as far apart as losses may be.
_MEASURED = "best"
_Tensors = Mapping[Any, torch.Tensor]
_States = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far the numbers of two runs may be apart, relatively. ``None``: they are not compared."""

    losses: float | None
    outputs: float | None
    movement: float | None
    states: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which two runs differ by more than is allowed."""

    what: str
    figure: float | None = None
    allowed: float | None = None

    def __str__(self) -> str:
        if self.figure is None or self.allowed is None:
            return self.what
        return f"{self.what} differ by {self.figure:.1e} (allowed {self.allowed:.0e})"


def differences(plain: Record, tuned: Record, tolerance: Tolerance) -> list[Difference]:
    """Everything in which a tuned run differs from the plain one beyond the tolerance."""
    found = [*_of_notes(plain, tuned, tolerance), *_of_states(plain, tuned, tolerance)]
    return found + [Difference(f"warning: {text}") for text in sorted(tuned.warnings - plain.warnings)]


def figures(plain: Record, tuned: Record) -> dict[str, float]:
    """The largest relative difference of each kind, for choosing tolerances and for tables."""
    nothing = Tolerance(-1.0, -1.0, -1.0, -1.0)
    kinds: dict[str, float] = {}
    for difference in differences(plain, tuned, nothing):
        if difference.figure is not None:
            kind = difference.what.partition(" of ")[0]
            kinds[kind] = max(kinds.get(kind, 0.0), difference.figure)
    return kinds


# --- notes ----------------------------------------------------------------------------------------------------


def _of_notes(plain: Record, tuned: Record, tolerance: Tolerance) -> Iterator[Difference]:
    for name in sorted(plain.notes.keys() | tuned.notes.keys()):
        old, new = plain.notes.get(name, []), tuned.notes.get(name, [])
        if len(old) != len(new):
            yield Difference(f"{name}: {len(new)} notes instead of {len(old)}")
        elif isinstance(old[0], str | bool | int):
            if old != new:
                at = next(place for place, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1])
                yield Difference(f"{name} is {new[at]!r:.200} instead of {old[at]!r:.200} (note {at + 1})")
        elif isinstance(old[0], list):
            yield from _beyond(f"values of {name}", max(map(_options_apart, old, new)), _OPTIONS)
        else:
            yield from _of_numbers(name, old, new, tolerance)


def _of_numbers(name: str, old: Sequence[Any], new: Sequence[Any], tolerance: Tolerance) -> Iterator[Difference]:
    old, new = [torch.as_tensor(value).double() for value in old], [torch.as_tensor(value).double() for value in new]
    if any(a.shape != b.shape for a, b in zip(old, new, strict=True)):
        yield Difference(f"{name} has another shape")
        return
    kind, allowed = ("losses", tolerance.losses) if "loss" in name else ("outputs", tolerance.outputs)
    scale = max(float(value.abs().max()) for value in old)
    apart = max(float((a - b).norm()) / max(float(a.norm()), 0.1 * scale, _TINY) for a, b in zip(old, new, strict=True))
    yield from _beyond(f"{kind} of {name}", apart, allowed)


# --- states ---------------------------------------------------------------------------------------------------


def _of_states(plain: Record, tuned: Record, tolerance: Tolerance) -> Iterator[Difference]:
    for name, old in plain.states.items():
        new = tuned.states.get(name)
        if new is None:
            yield Difference(f"{name} is missing")
        elif "param_groups" in old:
            yield from _of_optimizers(name, old, new, tolerance)
        else:
            yield from _of_models(name, old, new, plain.starts.get(name, {}), tolerance)


def _of_models(
    name: str, old: Mapping[str, Any], new: Mapping[str, Any], start: Mapping[str, Any], tolerance: Tolerance
) -> Iterator[Difference]:
    """Models, averages and schedulers: the same keys in the same order; tensors by how far they moved."""
    if list(old) != list(new):
        yield Difference(f"{name}: its checkpoint has {_keys_apart(old, new)}")
    common = [key for key in old if key in new]
    tensors = [key for key in common if isinstance(old[key], torch.Tensor)]
    for key in common:
        if key == _MEASURED and isinstance(old[key], float) and isinstance(new[key], float):
            yield from _beyond(f"losses of {name}.{key}", _options_apart([old[key]], [new[key]]), tolerance.losses)
        elif key not in tensors and not _same_option(old[key], new[key]):
            yield Difference(f"{name}: {key} is {new[key]!r:.80} instead of {old[key]!r:.80}")
        elif key in tensors and not _same_kind(old[key], new[key]) and tolerance.movement is not None:
            yield Difference(f"{name}: {key} is {_kind(new[key])} instead of {_kind(old[key])}")
    floating = [key for key in tensors if _same_kind(old[key], new[key]) and old[key].is_floating_point()]
    for statistics in (False, True):
        keys = [key for key in floating if ("running_" in key) == statistics]
        moved = {key: old[key] - start[key] if key in start else old[key] for key in keys}
        for key, apart in _tensors_apart({key: old[key] for key in keys}, new, moved):
            yield from _beyond(f"weights of {name}.{key}", apart, tolerance.movement)
    for key in set(tensors) - set(floating):
        if _same_kind(old[key], new[key]) and not torch.equal(old[key], new[key]):
            yield Difference(f"{name}: {key} is {new[key].tolist()!r:.80} instead of {old[key].tolist()!r:.80}")


def _of_optimizers(name: str, old: Any, new: Any, tolerance: Tolerance) -> Iterator[Difference]:
    """Optimizers: what a checkpoint holds, option for option and tensor for tensor."""
    if tolerance.states is None:
        return  # settings that change results may change what the optimizer is
    if len(old["param_groups"]) != len(new["param_groups"]):
        yield Difference(f"{name}: {len(new['param_groups'])} groups instead of {len(old['param_groups'])}")
        return
    for place, (mine, theirs) in enumerate(zip(old["param_groups"], new["param_groups"], strict=True)):
        if mine.keys() != theirs.keys():
            yield Difference(f"{name}: group {place} of its checkpoint has {_keys_apart(mine, theirs)}")
        for key in mine.keys() & theirs.keys():
            if not _same_option(mine[key], theirs[key]):
                yield Difference(f"{name}: {key} of group {place} is {theirs[key]!r:.80} instead of {mine[key]!r:.80}")
    if old["state"].keys() != new["state"].keys():
        yield Difference(f"{name}: it has state of {len(new['state'])} parameters instead of {len(old['state'])}")
    for key in sorted({key for state in old["state"].values() for key in state}):
        yield from _of_state(name, key, old["state"], new["state"], tolerance)


def _of_state(name: str, key: str, old: _States, new: _States, tolerance: Tolerance) -> Iterator[Difference]:
    """One kind of state (``exp_avg``, say) of all parameters."""
    had = {place: state[key] for place, state in old.items() if key in state}
    has = {place: state[key] for place, state in new.items() if key in state}
    if had.keys() != has.keys():
        yield Difference(f"{name}: {len(has)} parameters have {key} instead of {len(had)}")
    common = had.keys() & has.keys()
    tensors = [place for place in sorted(common) if _same_kind(had[place], has[place])]
    for place in common - set(tensors):
        if not _same_option(had[place], has[place]):
            yield Difference(f"{name}: {key} is {_kind(has[place])} instead of {_kind(had[place])}")
    numbers = {place: had[place] for place in tensors}
    allowed = 0.0 if key == "step" else tolerance.states
    for place, apart in _tensors_apart(numbers, has, numbers):
        yield from _beyond(f"states of {name}, {key} of parameter {place}", apart, allowed)


# --- values ---------------------------------------------------------------------------------------------------


def _tensors_apart(old: _Tensors, new: _Tensors, moved: _Tensors) -> Iterator[tuple[Any, float]]:
    """How far each pair of tensors is apart, relative to how far it moved; what hardly did, to the mean of all."""
    squares = sum(float(value.double().square().sum()) for value in moved.values())
    mean_square = squares / max(1, sum(value.numel() for value in moved.values()))
    for key, movement in moved.items():
        least = _LEAST_MOVEMENT * (mean_square * movement.numel()) ** 0.5
        scale = max(float(movement.double().norm()), least, _TINY)
        yield key, float((new[key].double() - old[key].double()).norm()) / scale


def _beyond(what: str, apart: float, allowed: float | None) -> Iterator[Difference]:
    if allowed is not None and not apart <= allowed:  # not a number is beyond, too
        yield Difference(what, apart, allowed)


def _options_apart(old: Any, new: Any) -> float:
    """How far two lists of numbers are apart, relative to the largest; infinite when they do not match."""
    if len(old) != len(new):
        return float("inf")
    scale = max((abs(float(value)) for value in old), default=0.0) or 1.0
    return max((abs(float(a) - float(b)) / scale for a, b in zip(old, new, strict=True)), default=0.0)


def _same_option(old: Any, new: Any) -> bool:
    """Whether two options are equal, of the same type, floats up to the rounding of float32."""
    if type(old) is not type(new):
        return False
    if isinstance(old, torch.Tensor):
        return _same_kind(old, new) and torch.allclose(old.double(), new.double(), rtol=_OPTIONS, atol=0)
    if isinstance(old, float):
        return old == new or abs(old - new) <= _OPTIONS * max(abs(old), abs(new))
    if isinstance(old, Mapping):
        return old.keys() == new.keys() and all(_same_option(value, new[key]) for key, value in old.items())
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(map(_same_option, old, new))
    return bool(old == new)


def _same_kind(old: Any, new: Any) -> bool:
    return isinstance(new, torch.Tensor) and old.shape == new.shape and old.dtype == new.dtype


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _keys_apart(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> str:
    lost, added = [str(key) for key in old if key not in new], [str(key) for key in new if key not in old]
    if not lost and not added:
        return "its keys in another order"
    texts = [f"lost {', '.join(lost[:4])}"] * bool(lost) + [f"gained {', '.join(added[:4])}"] * bool(added)
    return " and ".join(texts)
