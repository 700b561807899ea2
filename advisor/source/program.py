"""A program as its text tells it: names, functions, loops that train, calls. Nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
_LOADER_NAME = re.compile(r"(^|[._])(data_?)?loaders?$", re.IGNORECASE)
_BACKWARD = frozenset({"backward", "manual_backward"})
# A loop that breaks off ran every step until then; one that continues skips the rest of this step alone.
_DIVERTS = (ast.Continue, ast.Return)
_ROUNDS = 4
# Names that methods of optimizers, models and many others have: only `self.step()` is then known to be the file's own.
_COMMON_NAMES = frozenset({"step", "backward", "update", "run", "forward", "train", "fit", "eval"})


class Program:
    """A module's tree with what rules ask of it: parents, imported names, and the places that run at every step."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes = list(ast.walk(tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.aliases = _aliases(self.nodes)
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.functions = [node for node in self.nodes if isinstance(node, Function)]
        self.models = self._models()
        self.loaders = self._loaders()
        self.modules = self._modules()
        self.anchors = self._anchors()
        self.regions = {region for region, _ in self.anchors} | set(self._step_methods())

    # --- names -------------------------------------------------------------------------------------------------

    def name(self, node: ast.AST) -> str:
        """A dotted name with imports resolved (``F.relu`` is ``torch.nn.functional.relu``), empty for other nodes."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.aliases.get(node.id, node.id), *reversed(parts)])

    def called(self, call: ast.Call) -> str:
        """The dotted name of what a call calls."""
        return self.name(call.func)

    def is_model(self, node: ast.AST) -> bool:
        """Whether a name is used as a model somewhere: it is put into a mode, or asked for its parameters."""
        return self.name(node) in self.models

    # --- where a node stands -----------------------------------------------------------------------------------

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Each ancestor with its child on the way to the node, from the inside out."""
        child = node
        while (parent := self.parents.get(child)) is not None:
            yield parent, child
            child = parent

    def scope(self, node: ast.AST) -> ast.AST:
        """The function (or the module) whose body a node is in."""
        for parent, _ in self.above(node):
            if isinstance(parent, Function | ast.Lambda | ast.Module):
                return parent
        return self.tree

    def region(self, node: ast.AST) -> ast.AST | None:
        """The loop or function around a node that runs once a step, None when it is in none."""
        for parent, child in self.above(node):
            if parent in self.regions and child in getattr(parent, "body", []):
                return parent
            if isinstance(parent, Function | ast.Lambda | ast.ClassDef):
                return None
        return None

    def loader_loop(self, node: ast.AST) -> ast.AST | None:
        """The innermost loop over a DataLoader around a node, in its own function."""
        for parent, child in self.above(node):
            if isinstance(parent, ast.For) and child in parent.body and self._over_loader(parent):
                return parent
            if isinstance(parent, Function | ast.Lambda | ast.ClassDef):
                return None
        return None

    def every_step(self, node: ast.AST) -> bool:
        """Whether a node in a region runs whenever the region's backward pass does: under no condition of its own."""
        region = self.region(node)
        if region is None:
            return False
        own = self.branches(node, region)
        anchored = [self.branches(anchor, region) for owner, anchor in self.anchors if owner is region]
        return any(own <= branches for branches in anchored or [frozenset()])

    def branches(self, node: ast.AST, root: ast.AST) -> frozenset[tuple[ast.AST, str]]:
        """The conditions between a node and ``root`` that decide whether it runs."""
        found: set[tuple[ast.AST, str]] = set()
        for parent, child in self.above(node):
            found.update(_condition(parent, child))
            if parent is root:
                break
        return frozenset(found)

    def conditional(self, node: ast.AST) -> bool:
        """Whether a node runs under a condition in its function or module; being the main program is none."""
        return any(not _is_main_guard(decider) for decider, _ in self.branches(node, self.scope(node)))

    def in_test(self, node: ast.AST) -> bool:
        """Whether a node is in a function that tests something."""
        return any(isinstance(parent, Function) and parent.name.startswith("test") for parent, _ in self.above(node))

    # --- what the module holds ---------------------------------------------------------------------------------

    def _models(self) -> frozenset[str]:
        asked = [call.func for call in self.calls if isinstance(call.func, ast.Attribute)]
        names = {
            self.name(func.value)
            for func in asked
            if func.attr in ("parameters", "named_parameters") or (func.attr in ("train", "eval") and _bare(func, self))
        }
        return frozenset(names - {""})

    def _loaders(self) -> frozenset[str]:
        names: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and self.is_loader_call(node.value):
                names.update(self.name(target) for target in node.targets)
        return frozenset(names - {""})

    def is_loader_call(self, call: ast.Call) -> bool:
        """Whether a call makes a ``torch.utils.data.DataLoader``."""
        return self.called(call) in ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")

    def _over_loader(self, loop: ast.For) -> bool:
        iterated: ast.AST = loop.iter
        while isinstance(iterated, ast.Call) and self.called(iterated).rpartition(".")[2] in (
            "enumerate",
            "tqdm",
            "zip",
        ):
            if not iterated.args:
                return False
            iterated = iterated.args[0]
        name = self.name(iterated)
        return name in self.loaders or bool(_LOADER_NAME.search(name))

    def _modules(self) -> frozenset[ast.ClassDef]:
        """Classes that inherit from ``nn.Module``, directly or through one of this file."""
        classes = [node for node in self.nodes if isinstance(node, ast.ClassDef)]
        known: set[str] = set()
        for _ in range(_ROUNDS):
            known |= {c.name for c in classes if any(_is_module(self.name(base), known) for base in c.bases)}
        return frozenset(c for c in classes if c.name in known)

    def _step_methods(self) -> Iterator[Function]:
        """Methods that run once a step: ``forward`` of a module, and Lightning's ``training_step``."""
        for node in self.modules:
            for member in node.body:
                if isinstance(member, Function) and member.name in ("forward", "training_step"):
                    yield member

    def _anchors(self) -> list[tuple[ast.AST, ast.Call]]:
        """Backward passes with the loop or function that runs once for each.

        A function that holds one outside of any loop is a step of whoever calls it in a loop.
        """
        anchors: list[tuple[ast.AST, ast.Call]] = []
        left = [call for call in self.calls if is_backward(call)]
        seen = set(left)
        while left:
            call = left.pop()
            owner = self._owner(call)
            if isinstance(owner, Function):
                if not self._looped(owner, {owner}):
                    continue
                callers = [caller for caller in self._callers(owner) if caller not in seen]
                seen.update(callers)
                left += callers
            if owner is not None:
                anchors.append((owner, call))
        return anchors

    def _owner(self, call: ast.Call) -> Loop | Function | None:
        """The innermost loop around a call in its function, else the function, else None."""
        for parent, child in self.above(call):
            if isinstance(parent, Loop) and child in parent.body:
                return parent
            if isinstance(parent, Function):
                return parent
            if isinstance(parent, ast.Lambda | ast.ClassDef):
                return None
        return None

    def _looped(self, function: Function, seen: set[Function]) -> bool:
        """Whether a function is called in a loop of this file, by itself or through others."""
        for call in self._callers(function):
            owner = self._owner(call)
            if isinstance(owner, Loop):
                return True
            if isinstance(owner, Function) and owner not in seen and self._looped(owner, seen | {owner}):
                return True
        return False

    def _callers(self, function: Function) -> list[ast.Call]:
        """The calls of a function: by its bare name, or as a method, where the name is not one that others have too."""
        is_method = isinstance(self.parents.get(function), ast.ClassDef)
        return [call for call in self.calls if _calls(self.called(call), function.name, is_method=is_method)]


def _aliases(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """What imported names stand for."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _bare(func: ast.Attribute, program: Program) -> bool:
    """Whether ``x.train`` or ``x.eval`` is called as a module's: with nothing, or with a mode."""
    call = program.parents.get(func)
    return isinstance(call, ast.Call) and len(call.args) <= (1 if func.attr == "train" else 0)


def _is_module(base: str, known: set[str]) -> bool:
    return base in ("torch.nn.Module", "torch.nn.modules.Module") or base.endswith("LightningModule") or base in known


def _calls(called: str, name: str, *, is_method: bool) -> bool:
    head, _, last = called.rpartition(".")
    if last != name:
        return False
    return (not head) if not is_method else head == "self" or (bool(head) and name not in _COMMON_NAMES)


def is_backward(call: ast.Call) -> bool:
    """Whether a call runs a backward pass."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in _BACKWARD


def _condition(parent: ast.AST, child: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What decides whether ``child`` runs when ``parent`` does."""
    match parent:
        case ast.If() | ast.IfExp():
            if child is not parent.test:
                body = parent.body if isinstance(parent.body, list) else [parent.body]
                yield parent, "then" if child in body else "else"
        case ast.BoolOp(values=[_, *rest]) if child in rest:
            yield parent, "and"
        case ast.ExceptHandler() | ast.match_case():
            yield parent, "case"
    for block in (getattr(parent, field, None) for field in ("body", "orelse", "finalbody")):
        if isinstance(block, list) and child in block:
            for earlier in block[: block.index(child)]:
                if isinstance(earlier, ast.If) and any(_diverts(part) for part in (earlier.body, earlier.orelse)):
                    yield earlier, "guard"


def _diverts(block: Sequence[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], _DIVERTS)


def _is_main_guard(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.left, ast.Name)
        and node.test.left.id == "__name__"
    )
