"""A program as its text tells it: names, functions, loops that train, and what runs at every step. Nothing is run."""

import ast
import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
Place = tuple[int, int]  # line and column
Scope = Function | ast.Lambda | ast.Module

# A loop that breaks off ran every step until then; one that continues skips the rest of this step alone.
_SKIPS = (ast.Continue, ast.Return)
# Methods whose results lie on the host, and attributes that do.
_OF_HOST = frozenset({"item", "tolist", "numpy", "cpu", "size", "numel", "shape", "dtype", "device", "ndim"})
# Methods that many classes have: only one of ``self`` is known to be this file's.
_COMMON_NAMES = frozenset({"step", "backward", "update", "run", "forward", "train", "fit", "eval"})


class Program:
    """A module's tree as rules need it: with parents, imported names, and the places that run at every step.

    ``steps`` has the backward passes, and the calls of functions that make one, of each loop or function that runs
    once for each of them; ``regions`` are these, and Lightning's ``training_step``. ``losses``: names, by function.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes = list(ast.walk(tree))
        self.parents: dict[ast.AST, ast.AST] = {}
        self._scopes: dict[ast.AST, ast.AST] = {tree: tree}
        for node in self.nodes:  # parents come before their children
            inside = node if isinstance(node, Scope) else self._scopes[node]
            for child in ast.iter_child_nodes(node):
                self.parents[child], self._scopes[child] = node, inside
        bodies = (body for node in self.nodes if isinstance(body := getattr(node, "body", None), list))
        self._in_bodies = {statement for body in bodies for statement in body}
        self._aliases = dict(_imported(self.nodes))
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self._assigned = self._assignments()
        self.losses: dict[ast.AST, set[str]] = defaultdict(set)
        for call in filter(is_backward, self.calls):
            self.losses[self.scope(call)] |= {self.name(_loss(call))} - {""}
        self.steps = self._steps()
        named = (node for node in self.nodes if isinstance(node, Function) and node.name == "training_step")
        self.regions = {*self.steps, *named}
        skipping = (node for node in self.nodes if isinstance(node, ast.If))
        ends = ((node.lineno, part[-1]) for node in skipping for part in (node.body, node.orelse) if part)
        self._skips = sorted(line for line, end in ends if isinstance(end, _SKIPS))

    def name(self, node: ast.AST) -> str:
        """A dotted name with imports resolved (``F.relu`` is ``torch.nn.functional.relu``), empty for other nodes."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self._aliases.get(node.id, node.id), *reversed(parts)])

    def called(self, call: ast.Call) -> str:
        """The dotted name of a call's function."""
        return self.name(call.func)

    def names_in(self, *nodes: ast.AST) -> set[str]:
        """Every name in some nodes; of a dotted name also its beginnings."""
        return {self.name(part) for node in nodes for part in ast.walk(node)} - {""}

    def assigned(self, node: ast.AST) -> list[ast.expr]:
        """All values that a name is given in the file, by assignments to it alone."""
        name = self.name(node)
        assignments = (each for each in self.nodes if isinstance(each, ast.Assign))
        return [each.value for each in assignments if name and name in map(self.name, each.targets)]

    def is_on_host(self, value: ast.AST) -> bool:
        """Whether a value lies on the host as far as its text, and those of the values of its names, tell."""
        for part in ast.walk(value):
            if isinstance(part, ast.Attribute) and (part.attr in _OF_HOST or self.name(part).startswith("numpy.")):
                return True
            if isinstance(part, ast.Call) and self.called(part) in ("float", "int", "len", "bool"):
                return True
            if isinstance(part, ast.Name):
                latest = self.latest(part)
                latest = latest.iter if isinstance(latest, ast.For) else latest
                end = getattr(latest, "end_lineno", None) or 0, getattr(latest, "end_col_offset", None) or 0
                if isinstance(latest, ast.expr) and end < (part.lineno, part.col_offset) and self.is_on_host(latest):
                    return True
        return False

    def latest(self, node: ast.expr) -> ast.AST | None:
        """The last value that a name was given above this place in its function, or anywhere in the module; or None."""
        name, place = self.name(node), (node.lineno, node.col_offset)
        own, outer = self._assigned[self.scope(node), name], self._assigned[self.tree, name]
        above = bisect_right(own, place, key=itemgetter(0))
        if above:
            return own[above - 1][1]
        return outer[-1][1] if outer and outer is not own else None

    def _assignments(self) -> dict[tuple[ast.AST, str], list[tuple[Place, ast.AST]]]:
        """The values that each name of a scope is given, with their last lines."""
        found: dict[tuple[ast.AST, str], list[tuple[Place, ast.AST]]] = defaultdict(list)
        for node in self.nodes:
            if isinstance(node, ast.arg):
                found[self.scope(node), node.arg].append(((node.lineno, node.col_offset), node))
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                parent = self.parents[node]
                whole = isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr)
                while isinstance(parent, ast.Tuple | ast.List | ast.Starred):
                    parent = self.parents[parent]
                value = getattr(parent, "value", None) or node
                assigned = (value.end_lineno or 0, value.end_col_offset or 0), value if whole else parent
                found[self.scope(node), self.name(node)].append(assigned)
        for each in found.values():
            each.sort(key=itemgetter(0))
        return found

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Each ancestor with its child on the way to the node, from the inside out."""
        while (parent := self.parents.get(node)) is not None:
            yield parent, node
            node = parent

    def scope(self, node: ast.AST) -> ast.AST:
        """The function (or the module) that a node is in."""
        return self._scopes[node]

    def nearest(self, node: ast.AST, is_wanted: Callable[[Any], bool]) -> Any:
        """The innermost wanted block around a node, of which it is in the body, up to its function; None without."""
        for parent, child in self.above(node):
            if is_wanted(parent) and child in self._in_bodies:
                return parent
            if isinstance(parent, Function | ast.Lambda | ast.ClassDef):
                return None
        return None

    def region(self, node: ast.AST) -> ast.AST | None:
        """The loop or function around a node that runs once a step, None when it is in none."""
        found: ast.AST | None = self.nearest(node, self.regions.__contains__)
        return found

    def is_conditional(self, node: ast.AST, root: ast.AST) -> bool:
        """Whether a condition between a node and ``root`` decides whether it runs."""
        inside = itertools.takewhile(lambda pair: pair[0] is not root, self.above(node))
        return any(_decides(parent, child) for parent, child in inside)

    def every_step(self, node: Any) -> bool:
        """Whether a node runs at every step of its region: under no condition, behind no skip."""
        region = self.region(node)
        if region is None or self.is_conditional(node, region):
            return False
        lines = [one.lineno for one in self.steps.get(region, [])] or [getattr(region, "lineno", 0)]
        last = max((line for line in lines if line <= node.lineno), default=node.lineno)
        return bisect_right(self._skips, last) == bisect_right(self._skips, node.lineno - 1)

    def _steps(self) -> dict[ast.AST, list[ast.Call]]:
        """Backward passes by the loop that runs once for each, or by the function that a loop calls for each.

        The calls of such a function are those of the loop around them.
        """
        callers: dict[str, list[ast.Call]] = defaultdict(list)
        for call in self.calls:
            head, _, last = self.called(call).rpartition(".")
            if head in ("", "self") or last not in _COMMON_NAMES:
                callers[last].append(call)
        found: dict[ast.AST, list[ast.Call]] = defaultdict(list)
        for call in filter(is_backward, self.calls):
            owner = self.nearest(call, lambda parent: isinstance(parent, Loop | Function))
            if isinstance(owner, Function) and owner not in found:
                for other in callers[owner.name]:
                    if loop := self.nearest(other, lambda parent: isinstance(parent, Loop)):
                        found[loop].append(other)
                        found[owner] = []
            if isinstance(owner, Loop) or owner in found:
                found[owner].append(call)
        return dict(found)


def is_backward(call: ast.Call) -> bool:
    """Whether a call runs a backward pass."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("backward", "manual_backward")


def _loss(node: ast.expr) -> ast.expr:
    """The value that a backward pass is of: `(loss / n).backward()`, `accelerator.backward(loss)`, `scale(loss)`."""
    match node:
        case ast.Call(args=[first, *_]) | ast.BinOp(left=ast.Constant(), right=first) | ast.BinOp(left=first):
            return _loss(first)
        case ast.Call(func=ast.Attribute(value=value)) | ast.Subscript(value=value):
            return _loss(value)
    return node


def _decides(parent: ast.AST, child: ast.AST) -> bool:
    """Whether a child runs in some cases only where its parent does."""
    match parent:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.BoolOp(values=[test, *_]):
            return child is not test
        case ast.ExceptHandler() | ast.match_case():
            return True
    return False


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Each imported name with the dotted name that it stands for."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
