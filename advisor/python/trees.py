"""Python source as syntax trees: the names that statements read and bind, their calls, and their blocks."""

import ast
import contextlib
import functools
import itertools
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

Loop = ast.For | ast.AsyncFor | ast.While
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
# Nodes that leave a block of statements, so that the block cannot become a function.
LEAVES = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Break, ast.Continue)
_HOLDS_BLOCKS = ast.stmt | ast.excepthandler | ast.match_case


def bound_in(*parts: ast.AST) -> set[str]:
    """The names and attributes (``self.step``) that source code binds or changes in place."""
    return {name for node in own_nodes(parts) for name in bound_by(node)}


def bound_by(node: ast.AST) -> set[str]:
    """The names that a node itself binds; nodes inside it do not count."""
    targets: list[ast.expr] = []
    match node:
        case ast.Assign():
            targets = node.targets
        case ast.AugAssign() | ast.AnnAssign() | ast.NamedExpr() | ast.For() | ast.AsyncFor():
            targets = [node.target]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        # `x.add_()` changes x in place; `clip_grad_norm_` and `unscale_` change only gradients.
        case ast.Expr(ast.Call(ast.Attribute(owner, method))) if method.endswith("_"):
            targets = [] if "grad" in method or method == "unscale_" else [owner]
    return {name for target in targets for name in _bases(target)}


def _bases(target: ast.expr) -> Iterator[str]:
    """The names that an assignment binds: ``x`` for ``x[:, 0]``, ``x`` and ``y`` for ``x, y``, ``self.x`` as it is."""
    if isinstance(target, ast.Name | ast.Attribute):
        yield ast.unparse(target)
    elif isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _bases(part)
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _bases(target.value)


def walk(parts: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of these parts."""
    return (node for one in parts for node in ast.walk(one))


def own_nodes(parts: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of these parts, without the nodes inside functions and classes."""
    for one in parts:
        yield one
        if not isinstance(one, FUNCTIONS | ast.Lambda | ast.ClassDef):
            yield from own_nodes(ast.iter_child_nodes(one))


def leaves(parts: Iterable[ast.AST]) -> bool:
    """Whether statements leave their block or function (return, break, yield or the like)."""
    return any(isinstance(one, LEAVES) for one in own_nodes(parts))


def named(nodes: Iterable[ast.AST], context: type[ast.expr_context]) -> set[str]:
    """The variables among the nodes that are read (``ast.Load``) or bound (``ast.Store``)."""
    return {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, context)}


def names_in(parts: Iterable[ast.AST]) -> list[ast.Name | ast.Attribute]:
    """The names and attributes in these parts."""
    return [node for node in walk(parts) if isinstance(node, ast.Name | ast.Attribute)]


def read_in(*parts: ast.AST) -> set[str]:
    """The names and attributes that these parts read, also by ``+=`` and the like."""
    added = (bound_by(node) for node in walk(parts) if isinstance(node, ast.AugAssign))
    return set().union(*added) | {ast.unparse(one) for one in names_in(parts) if isinstance(one.ctx, ast.Load)}


def computing(needed: set[str], statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements that compute the values of these names, in order."""
    found: list[ast.stmt] = []
    for one in reversed(statements):
        if bound_in(one) & needed:
            found.insert(0, one)
            needed = needed | read_in(one)
    return found


class Flow:
    """The names and attributes in statements, in the order in which the statements run.

    ``read`` are those that they read before they give them a value, ``stored`` get one, ``certain`` in any case.
    """

    def __init__(self, statements: Iterable[ast.stmt]) -> None:
        self.read, self.stored = dict[str, None](), dict[str, None]()
        self.certain = self._follow(statements, frozenset())

    def _follow(self, statements: Iterable[ast.stmt], bound: frozenset[str]) -> frozenset[str]:
        """Add the names of statements. ``bound`` are the names bound before them; return the names bound after them."""
        for one in statements:
            inner = [] if isinstance(one, FUNCTIONS | ast.ClassDef) else [*blocks(one)]
            heads = [part for part in ast.iter_child_nodes(one) if not isinstance(part, _HOLDS_BLOCKS)]
            nodes = [*walk(heads if any(inner) else [one])]
            own = named(walk(node.target for node in nodes if isinstance(node, ast.comprehension)), ast.Store)
            added = {node.target for node in nodes if isinstance(node, ast.AugAssign)}
            names = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute)]
            names.sort(key=lambda node: (node.lineno, node.col_offset))
            texts = [(text, node) for node in names if (text := ast.unparse(node)) not in own]
            loaded = (text for text, node in texts if isinstance(node.ctx, ast.Load) or node in added)
            self.read.update(dict.fromkeys(text for text in loaded if text not in bound))
            new = [text for text, node in texts if isinstance(node.ctx, ast.Store)]
            self.stored.update(dict.fromkeys(new))
            bound = bound.union(new)
            if any(inner):  # blocks of statements other than `if` count as run one after the other
                branches = inner[:2] if isinstance(one, ast.If) else [[*itertools.chain(*inner)]]
                bound = frozenset.intersection(*(self._follow(branch, bound) for branch in branches))
        return bound


def blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of statements inside a statement."""
    for node in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        for name in ("body", "orelse", "finalbody"):
            yield getattr(node, name, [])


def holds(statement: ast.stmt | ast.expr, line: int) -> bool:
    """Whether a line belongs to a statement or an expression."""
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def statements_at(line: int, block: list[ast.stmt]) -> list[ast.stmt]:
    """The statements around a line, in a block and its inner blocks, outermost first."""
    return [one for part in blocks_to(line, block) for one in part if holds(one, line)]


def place_in(block: Sequence[ast.stmt], line: int) -> int:
    """The index of the statement in a block to which a line belongs; -1 if there is none."""
    return next((at for at, one in enumerate(block) if holds(one, line)), -1)


def blocks_to(line: int, block: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """The block and those of its inner blocks that contain a line, outermost first."""
    while block:
        yield block
        inner = (part for one in block for part in blocks(one) if part)
        block = next((part for part in inner if part[0].lineno <= line <= (part[-1].end_lineno or 0)), [])


def tree_of_file(file: str) -> ast.Module:
    """The syntax tree of a file as it was first read; empty if it is not Python. Callers must not change the tree."""
    return _tree_of("".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=64)  # the same files are asked for many times
def _tree_of(source: str) -> ast.Module:
    with contextlib.suppress(SyntaxError, ValueError):
        return ast.parse(source)
    return ast.Module([], [])


def clears(part: ast.AST) -> bool:
    """Whether a part clears gradients: it calls ``zero_grad`` or ``grad.zero_``, or assigns to ``grad``."""
    return any(
        node.attr in ("zero_grad", "zero_gradients")
        or (node.attr == "grad" and isinstance(node.ctx, ast.Store))
        or (node.attr == "zero_" and ast.unparse(node.value).endswith("grad"))
        for node in ast.walk(part)
        if isinstance(node, ast.Attribute)
    )


def calls_of(name: str, statements: Iterable[ast.AST]) -> list[ast.Call]:
    """The calls in statements whose function has this name (after its last dot)."""
    return [node for node in walk(statements) if isinstance(node, ast.Call) and name_called(node) == name]


def names_called(node: ast.AST) -> set[str]:
    """The last parts of the names of all functions that a part calls."""
    return {name_called(part) for part in ast.walk(node) if isinstance(part, ast.Call)}


def name_called(call: ast.Call) -> str:
    """The last part of a call's name: ``step`` of ``optimizer.step()``."""
    return ast.unparse(call.func).rpartition(".")[2]


def value_of(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a name, an attribute, an element, or a tuple of these; None for other expressions (calls)."""
    if isinstance(expression, ast.Tuple):
        return tuple(value_of(one, names) for one in expression.elts)
    if isinstance(expression, ast.Name):
        return names.get(expression.id)
    if isinstance(expression, ast.Attribute):
        return getattr(value_of(expression.value, names), expression.attr, None)
    if isinstance(expression, ast.Subscript):
        inside = expression.slice
        key: Any = inside.value if isinstance(inside, ast.Constant) else value_of(inside, names)
        several: Any = value_of(expression.value, names)
        with contextlib.suppress(TypeError, KeyError, IndexError):
            return several[key] if isinstance(several, Mapping | list | tuple) else None
    return None


def functions_that(tree: ast.Module, does: Callable[[ast.AST], bool]) -> set[str]:
    """The names of a file's functions for which ``does`` is true, and of functions that call them."""
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    calls = [(one.name, names_called(one)) for one in functions]  # methods of different classes may share a name
    found = {one.name for one in functions if does(one)}
    while more := {name for name, called in calls if called & found} - found:
        found |= more
    return found
