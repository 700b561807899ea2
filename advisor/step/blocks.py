"""The blocks that a model repeats."""

import torch


def repeated_blocks(model: torch.nn.Module) -> list[list[tuple[str, torch.nn.Module]]]:
    """The blocks that a model repeats, as groups of (qualified name, module); the group with most parameters first.

    A block is a module with parameters and modules of its own that stands in a Sequential, ModuleList or ModuleDict
    beside another of its class. Of nested ones the outer count, as long as two of them are alike to the shapes of
    their parameters: so the layers of a transformer are found rather than its stages or its experts.
    """
    groups: dict[object, list[tuple[str, torch.nn.Module]]] = {}
    for name, block in {id(block): (name, block) for name, block in blocks_below("", model)}.values():
        groups.setdefault(kind_of(block), []).append((name, block))
    return sorted((group for group in groups.values() if len(group) >= 2), key=parameters_in, reverse=True)


def blocks_to_compile(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated blocks to compile by themselves: kinds that have, taken together, three blocks or more to a shape.

    Other kinds, as in the stages of a convolutional network, would take as long as the whole model. All blocks are
    returned where no kind has so many.
    """
    groups = [[block for _, block in group] for group in repeated_blocks(model)]
    chosen: list[torch.nn.Module] = []
    for group in sorted(groups, key=lambda blocks: len(set(map(shape_of, blocks))) / len(blocks)):
        blocks = chosen + group
        if 3 * len(set(map(shape_of, blocks))) <= len(blocks):
            chosen = blocks
    return chosen or [block for group in groups for block in group]


def blocks_below(prefix: str, module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The blocks inside a module, by names that begin with a prefix."""
    named = [(f"{prefix}{name}", child) for name, child in module.named_children()]
    found: list[tuple[str, torch.nn.Module]] = []
    for blocks in blocks_by_kind(module, named):
        if len(blocks) >= 2 and (two_alike(blocks) or not any(blocks_below("", block) for _, block in blocks)):
            found += blocks
    taken = {name for name, _ in found}
    for name, child in named:
        if name not in taken:
            found += blocks_below(f"{name}.", child)
    return found


def blocks_by_kind(
    container: torch.nn.Module, named: list[tuple[str, torch.nn.Module]]
) -> list[list[tuple[str, torch.nn.Module]]]:
    """The blocks among a container's children, by kind; none when the module is no container."""
    kinds: dict[object, list[tuple[str, torch.nn.Module]]] = {}
    if isinstance(container, (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)):
        for name, child in named:
            if is_block(child):
                kinds.setdefault(kind_of(child), []).append((name, child))
    return list(kinds.values())


def is_block(module: torch.nn.Module) -> bool:
    """Whether a module has parts and is called as a whole: a bare ModuleList is not, a class made from one may be."""
    if next(module.children(), None) is None or next(module.parameters(), None) is None:
        return False
    lists = (torch.nn.ModuleList, torch.nn.ModuleDict)
    return not isinstance(module, lists) or type(module).forward not in [cls.forward for cls in lists]


def kind_of(module: torch.nn.Module) -> object:
    """The kind of a block: its class, and for a plain Sequential the classes inside."""
    inside = tuple(map(type, module.modules())) if type(module) is torch.nn.Sequential else ()
    return type(module), inside


def shape_of(block: torch.nn.Module) -> object:
    """The kind of a block with the names and shapes of its parameters; equal for blocks that share compiled code."""
    return kind_of(block), tuple((name, tuple(p.shape)) for name, p in block.named_parameters())


def two_alike(blocks: list[tuple[str, torch.nn.Module]]) -> bool:
    """Whether two of these blocks have one shape."""
    return len({shape_of(block) for _, block in blocks}) < len(blocks)


def parameters_in(group: list[tuple[str, torch.nn.Module]]) -> int:
    """The number of parameters in all blocks of a group."""
    return sum(parameter.numel() for _, block in group for parameter in block.parameters())
