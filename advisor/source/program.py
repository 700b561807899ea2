"""Read a program's source without running it: its names, functions, training loops, and the code of every step."""

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

# Statements that skip the rest of a step. ``break`` is not one: until then, every step ran whole.
_SKIPS = (ast.Continue, ast.Return)
# Methods whose results are on the host, and attributes on the host.
_OF_HOST = frozenset({"item", "tolist", "numpy", "cpu", "size", "numel", "shape", "dtype", "device", "ndim"})
# Names of methods that many classes have. Only calls on ``self`` are sure to mean this file's method.
_COMMON_NAMES = frozenset({"step", "backward", "update", "run", "forward", "train", "fit", "eval"})


class Program:
    """A module's tree for the rules, with parents, imported names, and the code that runs at every step.

    ``steps``: each loop or function that runs once per step, with its calls that run a backward pass. ``regions``:
    these loops and functions, and Lightning's ``training_step``. ``losses``: the names of losses in each function.
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
        """The dotted name of a node, with imports resolved (``torch.nn.functional.relu`` for ``F.relu``), or empty."""
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
        """All names in these nodes. A dotted name also counts by its beginnings (``a`` and ``a.b`` for ``a.b.c``)."""
        return {self.name(part) for node in nodes for part in ast.walk(node)} - {""}

    def assigned(self, node: ast.AST) -> list[ast.expr]:
        """All values that plain assignments in the file give to a name."""
        name = self.name(node)
        assignments = (each for each in self.nodes if isinstance(each, ast.Assign))
        return [each.value for each in assignments if name and name in map(self.name, each.targets)]

    def is_on_host(self, value: ast.AST) -> bool:
        """Whether the source of a value, or of the variables in it, shows that the value is on the host."""
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
        """The last value assigned to a name above this node in its function; or else in the module; or None."""
        name, place = self.name(node), (node.lineno, node.col_offset)
        own, outer = self._assigned[self.scope(node), name], self._assigned[self.tree, name]
        above = bisect_right(own, place, key=itemgetter(0))
        if above:
            return own[above - 1][1]
        return outer[-1][1] if outer and outer is not own else None

    def _assignments(self) -> dict[tuple[ast.AST, str], list[tuple[Place, ast.AST]]]:
        """The values assigned to each name in each scope, with the places where they end."""
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
        """The ancestors of a node, innermost first, each with its child on the way to the node."""
        while (parent := self.parents.get(node)) is not None:
            yield parent, node
            node = parent

    def scope(self, node: ast.AST) -> ast.AST:
        """The function (or the module) that contains a node."""
        return self._scopes[node]

    def nearest(self, node: ast.AST, is_wanted: Callable[[Any], bool]) -> Any:
        """The innermost wanted statement with a node in its body, within the node's function; None without."""
        for parent, child in self.above(node):
            if is_wanted(parent) and child in self._in_bodies:
                return parent
            if isinstance(parent, Function | ast.Lambda | ast.ClassDef):
                return None
        return None

    def region(self, node: ast.AST) -> ast.AST | None:
        """The loop or function around a node that runs once per step; None if there is none."""
        found: ast.AST | None = self.nearest(node, self.regions.__contains__)
        return found

    def is_conditional(self, node: ast.AST, root: ast.AST) -> bool:
        """Whether a node inside ``root`` runs only under a condition."""
        inside = itertools.takewhile(lambda pair: pair[0] is not root, self.above(node))
        return any(_decides(parent, child) for parent, child in inside)

    def every_step(self, node: Any) -> bool:
        """Whether a node runs at every step of its region: not under a condition, nor after a ``continue``."""
        region = self.region(node)
        if region is None or self.is_conditional(node, region):
            return False
        lines = [one.lineno for one in self.steps.get(region, [])] or [getattr(region, "lineno", 0)]
        last = max((line for line in lines if line <= node.lineno), default=node.lineno)
        return bisect_right(self._skips, last) == bisect_right(self._skips, node.lineno - 1)

    def _steps(self) -> dict[ast.AST, list[ast.Call]]:
        """The backward passes of each loop with one pass per round, and of each function that a loop calls per round.

        For the loop, the call of the function counts as a backward pass.
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
    """The loss in a backward call: `(loss / n).backward()`, `accelerator.backward(loss)`, `scale(loss).backward()`."""
    match node:
        case ast.Call(args=[first, *_]) | ast.BinOp(left=ast.Constant(), right=first) | ast.BinOp(left=first):
            return _loss(first)
        case ast.Call(func=ast.Attribute(value=value)) | ast.Subscript(value=value):
            return _loss(value)
    return node


def _decides(parent: ast.AST, child: ast.AST) -> bool:
    """Whether a parent runs this child only in some cases."""
    match parent:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.BoolOp(values=[test, *_]):
            return child is not test
        case ast.ExceptHandler() | ast.match_case():
            return True
    return False


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Each imported name with its full dotted name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
