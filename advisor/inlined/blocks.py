"""The blocks that a model repeats, such as the layers of a transformer."""

import torch

LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)


def repeated_blocks(model: torch.nn.Module) -> list[list[tuple[str, torch.nn.Module]]]:
    """Return the blocks that a model repeats, as groups of (qualified name, module); most parameters first.

    A block has parameters and submodules, and stands in a Sequential, ModuleList or ModuleDict beside another of its
    class. Outer blocks count before inner ones, if two of them have the same shapes: this finds the layers of a
    transformer, not its stages or experts.
    """
    groups: dict[object, list[tuple[str, torch.nn.Module]]] = {}
    for name, block in {id(block): (name, block) for name, block in blocks_below("", model)}.values():
        groups.setdefault(kind_of(block), []).append((name, block))
    sizes = {kind: sum(p.numel() for _, block in group for p in block.parameters()) for kind, group in groups.items()}
    return [groups[kind] for kind in sorted(sizes, key=sizes.__getitem__, reverse=True) if len(groups[kind]) >= 2]


def blocks_to_compile(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the repeated blocks to compile one by one: kinds with at least three blocks per shape.

    Other kinds, as the stages of a convolutional network, take as long as the whole model. All, if no kind has enough.
    """
    groups = [[block for _, block in group] for group in repeated_blocks(model)]
    chosen: list[torch.nn.Module] = []
    for group in sorted(groups, key=lambda blocks: len(set(map(shape_of, blocks))) / len(blocks)):
        blocks = chosen + group
        if 3 * len(set(map(shape_of, blocks))) <= len(blocks):
            chosen = blocks
    return chosen or [block for group in groups for block in group]


def blocks_below(prefix: str, module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """Return the blocks inside a module, by names that begin with a prefix."""
    kinds: dict[object, list[tuple[str, torch.nn.Module]]] = {}
    if isinstance(module, (torch.nn.Sequential, *LISTS)):
        for name, child in module.named_children():
            # A bare ModuleList is not called as a whole; a class that is made from one may be.
            called = not isinstance(child, LISTS) or type(child).forward not in [kind.forward for kind in LISTS]
            has_parts = next(child.children(), None) is not None and next(child.parameters(), None) is not None
            if called and has_parts:
                kinds.setdefault(kind_of(child), []).append((f"{prefix}{name}", child))
    found: list[tuple[str, torch.nn.Module]] = []
    for blocks in kinds.values():
        alike = len({shape_of(block) for _, block in blocks}) < len(blocks)
        if len(blocks) >= 2 and (alike or not any(blocks_below("", block) for _, block in blocks)):
            found += blocks
    taken = {name for name, _ in found}
    for name, child in module.named_children():
        if f"{prefix}{name}" not in taken:
            found += blocks_below(f"{prefix}{name}.", child)
    return found


def kind_of(block: torch.nn.Module) -> object:
    """Return the class of a block, and for a plain Sequential the classes inside."""
    return type(block), tuple(map(type, block.modules())) if type(block) is torch.nn.Sequential else ()


def shape_of(block: torch.nn.Module) -> object:
    """Return a block's kind with the shapes of its parameters; equal for blocks that share compiled code."""
    return kind_of(block), tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
