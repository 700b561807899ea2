"""A program as its text tells it: names, functions, loops that train, calls. Nothing is run."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Branch = tuple[ast.AST, str]

# A loop that breaks off ran every step until then; one that continues skips the rest of this step alone.
_DIVERTS = (ast.Continue, ast.Return)
_BLOCKS = ("body", "orelse", "finalbody")
# Conditions that are told or compared in one file: some seconds' work.
_MOST = 5_000_000


class TooMuchError(Exception):
    """A program has more conditions around its nodes than can be read in a few seconds."""


class Branches:
    """Tells the conditions around nodes. ``parents`` has the parent of each node; ``spent`` counts what was told."""

    def __init__(self, parents: Mapping[ast.AST, ast.AST]) -> None:
        self._parents = parents
        self._guards: dict[ast.AST, Sequence[Branch]] = {}
        self._read: set[ast.AST] = set()
        self._spent = 0

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Each ancestor with its child on the way to the node, from the inside out. Raises TooMuchError."""
        child = node
        while (parent := self._parents.get(child)) is not None:
            self.spend(1)
            yield parent, child
            child = parent

    def between(self, node: ast.AST, root: ast.AST) -> frozenset[Branch]:
        """The conditions between a node and ``root`` that decide whether it runs. Raises TooMuchError."""
        found: set[Branch] = set()
        for parent, child in self.above(node):
            found.update(_condition(parent, child))
            guards = self._before(parent, child)
            self.spend(len(guards))
            found.update(guards)
            if parent is root:
                break
        return frozenset(found)

    def spend(self, count: int) -> None:
        """Count what is read. Raises TooMuchError when it is too much."""
        self._spent += count
        if self._spent > _MOST:
            raise TooMuchError

    def _before(self, parent: ast.AST, child: ast.AST) -> Sequence[Branch]:
        """The conditions before a statement in its block that may skip the rest of it."""
        if parent not in self._read:
            self._read.add(parent)
            for block in (getattr(parent, field, None) for field in _BLOCKS):
                if isinstance(block, list):
                    self._read_block(block)
        return self._guards.get(child, ())

    def _read_block(self, block: Sequence[ast.AST]) -> None:
        guards: tuple[Branch, ...] = ()
        for statement in block:
            if guards:
                self._guards[statement] = guards
            if isinstance(statement, ast.If) and any(
                part and isinstance(part[-1], _DIVERTS) for part in (statement.body, statement.orelse)
            ):
                self.spend(len(guards))
                guards = (*guards, (statement, "guard"))


def is_main_guard(node: ast.AST) -> bool:
    """Whether a node is ``if __name__ == "__main__":``."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.left, ast.Name)
        and node.test.left.id == "__name__"
    )


def _condition(parent: ast.AST, child: ast.AST) -> Iterator[Branch]:
    match parent:
        case ast.If() | ast.IfExp():
            if child is not parent.test:
                body = parent.body if isinstance(parent.body, list) else [parent.body]
                yield parent, "then" if child in body else "else"
        case ast.BoolOp(values=[_, *rest]) if child in rest:
            yield parent, "and"
        case ast.ExceptHandler() | ast.match_case():
            yield parent, "case"


Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
_LOADER_NAME = re.compile(r"(^|[._])(data_?)?loaders?$", re.IGNORECASE)
_BACKWARD = frozenset({"backward", "manual_backward"})
_ROUNDS = 4
# Names that methods of optimizers, models and many others have: only `self.step()` is then known to be the file's own.
_COMMON_NAMES = frozenset({"step", "backward", "update", "run", "forward", "train", "fit", "eval"})


class Program:
    """A module's tree as rules need it: with parents, imported names, and the places that run at every step."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes = list(ast.walk(tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self._branches = Branches(self.parents)
        self.above, self.branches = self._branches.above, self._branches.between
        self._owners: dict[ast.Call, Loop | Function | None] = {}
        self.aliases = _aliases(self.nodes)
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self._calls_by_name = _by_last_name(self.calls, self.called)
        self.functions = [node for node in self.nodes if isinstance(node, Function)]
        self.models = self._models()
        self.loaders = self._loaders()
        self.modules = self._modules()
        self._anchored_in: dict[ast.AST, frozenset[frozenset[Branch]]] = {}
        self._anchors_of = self._anchors()
        self.regions = set(self._anchors_of) | set(self._step_methods())

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
        """The dotted name of a call's function."""
        return self.name(call.func)

    def is_model(self, node: ast.AST) -> bool:
        """Whether a name is used as a model somewhere: it is put into a mode, or asked for its parameters."""
        return self.name(node) in self.models

    # --- where a node stands -----------------------------------------------------------------------------------

    def scope(self, node: ast.AST) -> ast.AST:
        """The function (or the module) whose body a node is in."""
        for parent, _ in self.above(node):
            if isinstance(parent, Function | ast.Lambda | ast.Module):
                return parent
        return self.tree

    def region(self, node: ast.AST) -> ast.AST | None:
        """The loop or function around a node that runs once a step, None when it is in none."""
        found: ast.AST | None = self._nearest(node, self.regions.__contains__)
        return found

    def _nearest(self, node: ast.AST, is_wanted: Callable[[Any], bool]) -> Any:
        """The innermost wanted block around a node, of which it is in the body, up to its function; None without."""
        for parent, child in self.above(node):
            if is_wanted(parent) and child in getattr(parent, "body", []):
                return parent
            if isinstance(parent, Function | ast.Lambda | ast.ClassDef):
                return None
        return None

    def loader_loop(self, node: ast.AST) -> ast.AST | None:
        """The innermost loop over a DataLoader around a node, in its own function."""
        found: ast.AST | None = self._nearest(node, lambda one: isinstance(one, ast.For) and self._over_loader(one))
        return found

    def every_step(self, node: ast.AST) -> bool:
        """Whether a node in a region runs with every backward pass of the region: under no condition of its own."""
        region = self.region(node)
        if region is None:
            return False
        own, anchored = self.branches(node, region), self._anchored(region)
        self._branches.spend(len(own) * len(anchored))
        return any(own <= branches for branches in anchored)

    def _anchored(self, region: ast.AST) -> frozenset[frozenset[Branch]]:
        """The conditions of each backward pass of a region; none for a region without one."""
        known = self._anchored_in.get(region)
        if known is None:
            anchored = frozenset(self.branches(anchor, region) for anchor in self._anchors_of.get(region, ()))
            known = self._anchored_in[region] = anchored or frozenset({frozenset()})
        return known

    def conditional(self, node: ast.AST) -> bool:
        """Whether a node runs under a condition in its function or module, other than a guard of the main program."""
        return any(not is_main_guard(decider) for decider, _ in self.branches(node, self.scope(node)))

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

    def _anchors(self) -> dict[ast.AST, list[ast.Call]]:
        """Backward passes by the loop or function that runs once for each.

        A function that holds one outside of any loop is a step of whoever calls it in a loop.
        """
        anchors: dict[ast.AST, list[ast.Call]] = {}
        left = [call for call in self.calls if is_backward(call)]
        seen, looped = set(left), self._looped() if left else set()
        while left:
            call = left.pop()
            owner = self._owner(call)
            if isinstance(owner, Function):
                if owner not in looped:
                    continue
                callers = [caller for caller in self._callers(owner) if caller not in seen]
                seen.update(callers)
                left += callers
            if owner is not None:
                anchors.setdefault(owner, []).append(call)
        return anchors

    def _owner(self, call: ast.Call) -> Loop | Function | None:
        """The innermost loop around a call in its function, else the function, else None."""
        if call not in self._owners:
            self._owners[call] = self._nearest(call, lambda parent: isinstance(parent, Loop | Function))
        return self._owners[call]

    def _looped(self) -> set[Function]:
        """The functions that are called in a loop of this file, by themselves or through others."""
        called_by: dict[Function, set[Function]] = {}
        left: list[Function] = []
        for function in self.functions:
            for owner in {self._owner(call) for call in self._callers(function)}:
                if isinstance(owner, Loop):
                    left.append(function)
                elif owner is not None:
                    called_by.setdefault(owner, set()).add(function)
        looped = set(left)
        while left:
            new = called_by.get(left.pop(), set()) - looped
            looped |= new
            left += new
        return looped

    def _callers(self, function: Function) -> list[ast.Call]:
        """The calls of a function: by its bare name, or as a method, where the name is not one that others have too."""
        is_method = isinstance(self.parents.get(function), ast.ClassDef)
        named = self._calls_by_name.get(function.name, ())
        self._branches.spend(len(named))
        return [call for call in named if _calls(self.called(call), function.name, is_method=is_method)]


def _aliases(nodes: Sequence[ast.AST]) -> dict[str, str]:
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


def _by_last_name(calls: Sequence[ast.Call], called: Callable[[ast.Call], str]) -> dict[str, list[ast.Call]]:
    found: dict[str, list[ast.Call]] = {}
    for call in calls:
        found.setdefault(called(call).rpartition(".")[2], []).append(call)
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
