"""Find the blocks that a model repeats (a transformer's layers, for example)."""

import torch

LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)


def repeated_blocks(model: torch.nn.Module) -> list[list[tuple[str, torch.nn.Module]]]:
    """Return the blocks that a model repeats, as groups of (qualified name, module); most parameters first.

    A block has parameters and submodules. It is in a Sequential, ModuleList or ModuleDict with another block of its
    class. Outer blocks are preferred to inner blocks if two of them have the same shapes. So the layers of a
    transformer are found, not its stages or experts.
    """
    groups: dict[object, list[tuple[str, torch.nn.Module]]] = {}
    for name, block in {id(block): (name, block) for name, block in blocks_below("", model)}.values():
        groups.setdefault(kind_of(block), []).append((name, block))
    sizes = {kind: sum(p.numel() for _, block in group for p in block.parameters()) for kind, group in groups.items()}
    return [groups[kind] for kind in sorted(sizes, key=sizes.__getitem__, reverse=True) if len(groups[kind]) >= 2]


def blocks_to_compile(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the repeated blocks to compile one by one: the kinds with at least three blocks per shape.

    Other kinds (a CNN's stages) compile as slowly as the whole model. If no kind has enough, return all blocks.
    """
    groups = [[block for _, block in group] for group in repeated_blocks(model)]
    chosen: list[torch.nn.Module] = []
    for group in sorted(groups, key=lambda blocks: len(set(map(shape_of, blocks))) / len(blocks)):
        blocks = chosen + group
        if 3 * len(set(map(shape_of, blocks))) <= len(blocks):
            chosen = blocks
    return chosen or [block for group in groups for block in group]


def blocks_below(prefix: str, module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """Return the blocks inside a module, with names that begin with a prefix."""
    kinds: dict[object, list[tuple[str, torch.nn.Module]]] = {}
    if isinstance(module, (torch.nn.Sequential, *LISTS)):
        for name, child in module.named_children():
            # A plain ModuleList has no forward; a subclass may have one.
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
    """Return the class of a block; for a plain Sequential, also the classes of its modules."""
    return type(block), tuple(map(type, block.modules())) if type(block) is torch.nn.Sequential else ()


def shape_of(block: torch.nn.Module) -> object:
    """Return a block's kind and the shapes of its parameters. Blocks with equal results share compiled code."""
    return kind_of(block), tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
