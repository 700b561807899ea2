"""A batch as a model call: positional inputs, keyword inputs and a target, told apart by the model's signature."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import torch

from advisor.step.nested import tensors_of
from advisor.step.read_code import count_unpacked
from advisor.step.spread import unwrapped

TARGET_NAMES = ("labels", "label", "targets", "target", "y")
# Names of the one parameter of a model that takes a batch as it is.
BATCH_NAMES = frozenset({"batch", "batch_dict", "batched_inputs", "data", "data_dict", "inputs", "sample"})
# Elements of a batch that is inputs and a target. A count.
PAIR = 2


class SplitBatch(NamedTuple):
    """A batch as a model call: positional inputs, keyword inputs, and the target (None when there is none)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any = None


def splitter(
    model: torch.nn.Module, *, with_target: bool, with_labels: bool = False, target_name: str = "", targets: int = 1
) -> Callable[[Any], SplitBatch]:
    """The splitter of this model's batches.

    - A mapping becomes keyword arguments. A target among them is left out where the model does not take it, or can do
      without it and it is wanted apart. ``target_name`` is the loss's own name for the target in a mapping.
    - An object that has all of several inputs as attributes, such as a batch of graphs, becomes keyword arguments too.
      Of a named tuple or a dataclass with one tensor beside a target, that is the input of a model that takes one.
    - The last element of a tuple or a list is the target when ``with_target``, or when the model's ``forward`` takes
      fewer inputs than the batch has. The inputs beside it may be a mapping of the model's keywords or, when
      ``with_target``, a tuple or list of its inputs. A batch of as many parts as the ``forward`` takes its one input
      apart into is that input; its last part is the target as well.
    - Anything else is the one input.

    ``with_labels``: the model gets what it takes of the labels, as one that computes its own loss. ``targets``: the
    number of targets that a loss needs; several of them are the last elements.
    """
    accepted = positional_count(model, with_labels=with_labels)
    keywords, required = keyword_inputs(model), required_keywords(model)
    places = positional_inputs(model)
    most = None if places is None else max(1, len(places))
    of_lists, unpacked = takes_list(model), parts_of_input(model)

    def split(batch: Any) -> SplitBatch:
        if isinstance(batch, Mapping):
            return split_mapping(batch, keywords, required, with_target=with_target, target_name=target_name)
        if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
            return split_parts(batch)
        if has_inputs(batch, required):
            return split_object(batch, required, with_target=with_target)
        if len(required) == 1 and not required <= BATCH_NAMES and (fields := labelled_fields(batch)):
            return split_mapping(fields, keywords, required, with_target=with_target, target_name=target_name)
        return SplitBatch((batch,), {}, batch if with_target else None)

    def split_parts(batch: Any) -> SplitBatch:
        inputs: Any = batch[0] if len(batch) == PAIR else None
        if names_inputs(inputs, keywords, required):
            return SplitBatch((), taken_of(inputs, keywords), batch[1] if with_target else None)
        if with_target and lists_inputs(inputs, places):
            return SplitBatch(tuple(inputs), {}, batch[1])
        if (accepted == 1 and lists_samples(batch)) or (of_lists and lists_tensors(batch)):
            return SplitBatch((batch,), {}, batch if with_target else None)
        if len(batch) == unpacked and not lists_parts(batch[0], unpacked):
            return SplitBatch((batch,), {}, batch[-1] if with_target else None)
        if 1 < targets < len(batch):
            return SplitBatch(tuple(batch[:-targets]), {}, PartsLeft(batch[-targets:]))
        return split_sequence(tuple(batch), accepted, most, with_target=with_target)

    return split


class PartsLeft(tuple[Any, ...]):
    """Several parts of a batch that the model has no inputs for; which of them are the target, a try tells."""

    __slots__ = ()


def names_inputs(inputs: Any, keywords: frozenset[str] | None, required: frozenset[str]) -> bool:
    """Whether the inputs of a pair are a mapping of the model's keywords rather than the value of its one parameter."""
    if not isinstance(inputs, Mapping) or keywords is None or len(inputs) <= 1:
        return False
    return required <= inputs.keys() and len(keywords & inputs.keys()) > 1


def taken_of(inputs: Any, keywords: frozenset[str] | None) -> dict[str, Any]:
    """The items of a mapping that the model has parameters for."""
    return {key: value for key, value in inputs.items() if keywords is None or key in keywords}


def lists_samples(batch: Any) -> bool:
    """Whether a batch is a list of its samples, each a mapping, as detectors take it; a pair of mappings is none."""
    mappings = isinstance(batch, list) and all(isinstance(sample, Mapping) for sample in batch)
    return mappings and (len(batch) != PAIR or batch[0].keys() == batch[1].keys())


def lists_inputs(inputs: Any, places: list[inspect.Parameter] | None) -> bool:
    """Whether the inputs of a pair are a sequence of those of a model that cannot be called with fewer than two."""
    if not isinstance(inputs, tuple | list) or hasattr(inputs, "_fields") or places is None:
        return False
    needed = sum(place.default is place.empty for place in places)
    return needed > 1 and needed <= len(inputs) <= len(places)


def lists_tensors(batch: Any) -> bool:
    """Whether a batch is a list of tensors and of nothing else."""
    return isinstance(batch, list) and all(isinstance(sample, torch.Tensor) for sample in batch)


def takes_list(model: torch.nn.Module) -> bool:
    """Whether a model says, by its first input's annotation, that it takes a list, as detectors take their images."""
    places = positional_inputs(model)
    annotation = places[0].annotation if places else ""
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.removeprefix("typing.").partition("[")[0] in ("list", "List")


def parts_of_input(model: torch.nn.Module) -> int:
    """The number of parts into which a model's forward pass takes its one input apart; 0 where it does not."""
    inputs, code = inputs_of(model) or (), getattr(own_forward(model), "__code__", None)
    return count_unpacked(code, inputs[0].name) if len(inputs) == 1 and code is not None else 0


def lists_parts(inputs: Any, count: int) -> bool:
    """Whether the first part of a batch is a sequence of that many parts itself."""
    return isinstance(inputs, tuple | list) and len(inputs) == count


def has_inputs(batch: Any, required: frozenset[str]) -> bool:
    """Whether a batch is an object whose attributes are named as the inputs of a model that needs several.

    A named tuple may also name the one input; another object may be what that input stands for.
    """
    fewest = 1 if required <= set(getattr(batch, "_fields", ())) else PAIR
    if isinstance(batch, torch.Tensor) or len(required) < fewest:
        return False
    values = [getattr(batch, name, None) for name in required]
    return any(next(tensors_of(value), None) is not None for value in values) and not any(
        value is None or callable(value) for value in values
    )


def split_object(batch: Any, required: frozenset[str], *, with_target: bool) -> SplitBatch:
    """An object's attributes as keyword inputs, and that of them that is a target; the whole object where none is."""
    target = next((value for name in TARGET_NAMES if (value := getattr(batch, name, None)) is not None), batch)
    inputs = {name: getattr(batch, name) for name in sorted(required)}
    return SplitBatch((), inputs, target if with_target else None)


def labelled_fields(batch: Any) -> dict[str, Any]:
    """The fields of a batch that is a named tuple or a dataclass of one tensor and a target; empty for any other."""
    fields: dict[str, Any] = (
        batch._asdict() if hasattr(batch, "_asdict") else vars(batch) if is_dataclass(batch) else {}
    )
    name = next((name for name in TARGET_NAMES if name in fields), None)
    others = [key for key, value in fields.items() if key != name and isinstance(value, torch.Tensor)]
    return fields if name is not None and len(others) == 1 else {}


def split_mapping(
    batch: Mapping[str, Any],
    accepted: frozenset[str] | None,
    required: frozenset[str],
    *,
    with_target: bool,
    target_name: str = "",
) -> SplitBatch:
    """A mapping as keyword inputs and a target: the whole mapping where none is named as one.

    What the model has no parameter for is left to a loss that gets the target; texts are left out. A model of one
    input, which the mapping does not name, gets the mapping where that input is called a batch, else what alone stands
    beside the target, or is the only tensor there.
    """
    name = next((name for name in (target_name, *TARGET_NAMES) if name in batch), None)
    target = None if not with_target else batch if name is None else batch[name]
    others = {key: value for key, value in batch.items() if key != name}
    inside = next(iter(others.values())) if len(others) == 1 else None
    if names_inputs(inside, accepted, required):
        return SplitBatch((), taken_of(inside, accepted), target)
    if accepted is None:
        return SplitBatch((), others if with_target and name not in required else dict(batch), target)
    if len(required) == 1 and not accepted & others.keys():
        alone = [batch] if required <= BATCH_NAMES else input_among(others)
        return SplitBatch(tuple(alone), {}, target) if alone else SplitBatch((), others, target)
    inputs = {k: v for k, v in others.items() if k in accepted or not (with_target or holds_text(v))}
    if name in (required if with_target else accepted):
        inputs[name] = batch[name]
    return SplitBatch((), inputs, target)


def holds_text(value: Any) -> bool:
    """Whether a value is a text, or a list of texts such as the names of samples."""
    return isinstance(value, str) or (isinstance(value, list) and len(value) > 0 and isinstance(value[0], str))


def input_among(others: Mapping[str, Any]) -> list[Any]:
    """The one input among the values beside a target, in a list: the only value, or the only tensor; else empty."""
    values = list(others.values())
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    alone = values if len(values) == 1 else tensors
    return alone if len(alone) == 1 else []


def split_sequence(batch: tuple[Any, ...], accepted: int | None, most: int | None, *, with_target: bool) -> SplitBatch:
    """A tuple or list as positional inputs and a target.

    Where all but the last are more than the ``most`` inputs that the model takes, the target is the tuple of what is
    left beside the ``accepted`` ones; where they are too few and all are inputs, it is the batch.
    """
    if len(batch) == 1:
        return SplitBatch(batch, {}, batch[0] if with_target else None)
    if with_target and accepted is not None and most is not None:
        if len(batch) == accepted and not any(isinstance(part, Mapping | tuple | list) for part in batch):
            return SplitBatch(batch, {}, batch)
        if len(batch) - 1 > most:
            return SplitBatch(batch[:accepted], {}, PartsLeft(batch[accepted:]))
    if with_target:
        return SplitBatch(batch[:-1], {}, batch[-1])
    return SplitBatch(batch[:accepted] if accepted is not None else batch, {})


def inputs_of(model: torch.nn.Module) -> list[inspect.Parameter] | None:
    """The parameters of a model's forward pass; None where it has no signature."""
    try:
        return list(inspect.signature(own_forward(model)).parameters.values())
    except (TypeError, ValueError):
        return None


def own_forward(model: torch.nn.Module) -> Callable[..., Any]:
    """The forward pass that the user wrote: that of a compiled model, or of one over several GPUs, takes anything."""
    inner = unwrapped(model)
    forward: Callable[..., Any] = getattr(inner, "_orig_mod", inner).forward
    return forward


def keyword_inputs(model: torch.nn.Module) -> frozenset[str] | None:
    """The keywords that the model is called with; None when it takes any."""
    parameters = inputs_of(model)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def required_keywords(model: torch.nn.Module) -> frozenset[str]:
    """The keywords without which the model cannot be called."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(p.name for p in inputs_of(model) or () if p.kind in kinds and p.default is p.empty)


def positional_inputs(model: torch.nn.Module) -> list[inspect.Parameter] | None:
    """The inputs that a model can be given by position; None when it takes any number."""
    parameters = inputs_of(model)
    if parameters is None or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def positional_count(model: torch.nn.Module, *, with_labels: bool = False) -> int | None:
    """The number of inputs of the model: the required ones, at least one; None when it takes any number.

    ``with_labels`` counts labels too, which a model without a use for them can do without.
    """
    positional = positional_inputs(model)
    if positional is None:
        return None
    return max(1, sum(p.default is p.empty or (with_labels and p.name in TARGET_NAMES) for p in positional))
