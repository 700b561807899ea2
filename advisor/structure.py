"""The structure of a model: the blocks that it repeats. torch is imported only when a function runs.

Recipes that treat a model block by block (regional compilation, activation checkpointing) share this view of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

Named = tuple[str, "nn.Module"]

# The same search as plain Python for exported code; it leaves a list of lists of (name, module) in `groups`.
REPEATED_BLOCKS_CODE = '''\
def kind_of(module):
    """What two blocks have in common: their class, and for a plain Sequential the classes inside."""
    inside = tuple(map(type, module.modules())) if type(module) is torch.nn.Sequential else ()
    return type(module), inside


def shapes_of(module):
    return tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())


def is_block(module):
    lists = (torch.nn.ModuleList, torch.nn.ModuleDict)
    composite = next(module.children(), None) is not None and next(module.parameters(), None) is not None
    return composite and (not isinstance(module, lists) or type(module).forward not in [cls.forward for cls in lists])


def blocks_below(prefix, module):
    """Blocks that a container holds twice or more; of nested ones the outer, unless only the inner are alike."""
    named = [(f"{prefix}{name}", child) for name, child in module.named_children()]
    kinds = {}
    if isinstance(module, (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)):
        for name, child in named:
            if is_block(child):
                kinds.setdefault(kind_of(child), []).append((name, child))
    taken, found = set(), []
    for blocks in kinds.values():
        shapes = [shapes_of(block) for _, block in blocks]
        alike = len(set(shapes)) < len(shapes)
        if len(blocks) >= 2 and (alike or not any(blocks_below("", block) for _, block in blocks)):
            taken.update(name for name, _ in blocks)
            found += blocks
    for name, child in named:
        if name not in taken:
            found += blocks_below(f"{name}.", child)
    return found


groups = {}
for name, block in {id(block): (name, block) for name, block in blocks_below("", model)}.values():
    groups.setdefault(kind_of(block), []).append((name, block))
groups = [group for group in groups.values() if len(group) >= 2]
'''


def repeated_blocks(model: nn.Module) -> list[list[Named]]:
    """The blocks that a model repeats, as groups of (qualified name, module); the group with most parameters first.

    A block is a module with parameters and modules of its own that stands in a Sequential, ModuleList or ModuleDict
    beside another of its class. Of nested ones the outer count, as long as two of them are alike to the shapes of
    their parameters: so the layers of a transformer are found rather than its stages or its experts.
    """
    groups: dict[Hashable, list[Named]] = {}
    for name, block in {id(block): (name, block) for name, block in _blocks_below("", model)}.values():
        groups.setdefault(_kind_of(block), []).append((name, block))
    return sorted((group for group in groups.values() if len(group) >= 2), key=_parameters_in, reverse=True)


def block_counts(model: nn.Module) -> tuple[tuple[str, int], ...]:
    """Class name and number of the blocks that a model repeats, in the order of :func:`repeated_blocks`."""
    return tuple((type(group[0][1]).__name__, len(group)) for group in repeated_blocks(model))


def _blocks_below(prefix: str, module: nn.Module) -> list[Named]:
    named = [(f"{prefix}{name}", child) for name, child in module.named_children()]
    found: list[Named] = []
    for blocks in _by_kind(module, named):
        if len(blocks) >= 2 and (_two_alike(blocks) or not any(_blocks_below("", block) for _, block in blocks)):
            found += blocks
    taken = {name for name, _ in found}
    for name, child in named:
        if name not in taken:
            found += _blocks_below(f"{name}.", child)
    return found


def _by_kind(container: nn.Module, named: list[Named]) -> list[list[Named]]:
    """The blocks among a container's children, by kind; none when the module is no container."""
    from torch import nn

    kinds: dict[Hashable, list[Named]] = {}
    if isinstance(container, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        for name, child in named:
            if _is_block(child):
                kinds.setdefault(_kind_of(child), []).append((name, child))
    return list(kinds.values())


def _is_block(module: nn.Module) -> bool:
    """Whether a module is called as a whole and has parts: a bare ModuleList is not, a class made from one may be."""
    from torch import nn

    if next(module.children(), None) is None or next(module.parameters(), None) is None:
        return False
    lists: tuple[Any, ...] = (nn.ModuleList, nn.ModuleDict)
    return not isinstance(module, lists) or type(module).forward not in [cls.forward for cls in lists]


def _kind_of(module: nn.Module) -> Hashable:
    """What two blocks have in common: their class, and for a plain Sequential the classes inside."""
    from torch import nn

    inside = tuple(map(type, module.modules())) if type(module) is nn.Sequential else ()
    return type(module), inside


def _two_alike(blocks: list[Named]) -> bool:
    shapes = Counter(
        tuple((name, tuple(parameter.shape)) for name, parameter in block.named_parameters()) for _, block in blocks
    )
    return max(shapes.values()) >= 2


def _parameters_in(group: list[Named]) -> int:
    return sum(parameter.numel() for _, block in group for parameter in block.parameters())
