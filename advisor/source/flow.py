"""Infers from a program's text whether a value lies on the host or on the device.

The rules in ``habits`` ask this. Where the text does not say, the answer is "unknown", and a rule that gets it keeps
silent: a finding that is wrong costs more trust than one that is missing.
"""

import ast
from collections.abc import Iterator, Sequence
from enum import Enum, auto

from advisor.source.program import Function, Program, is_backward

# Objects that run the backward pass of a loss which they are given.
_DRIVERS = frozenset({"accelerator", "fabric", "engine", "model_engine", "strategy", "self"})


class Kind(Enum):
    """Location of a value, as far as the text tells. ``MAYBE`` comes from a call that was given a device's tensor."""

    HOST = auto()
    FRESH = auto()
    DEVICE = auto()
    MAYBE = auto()
    UNKNOWN = auto()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HOST_METHODS = _words("item tolist numpy cpu size dim numel nelement ndimension stride data_ptr get_device keys")
_HOST_ATTRIBUTES = _words("shape dtype device ndim requires_grad is_cuda is_sparse layout grad_fn is_leaf")
_HOST_BUILTINS = _words("len int float str bool range isinstance hasattr type id repr callable issubclass round")
_FACTORY_NAMES = _words("zeros ones rand randn randint randperm full empty eye arange linspace")
FACTORIES = frozenset(f"torch.{name}" for name in _FACTORY_NAMES)
_DTYPES = _words("float float16 float32 float64 bfloat16 half double long int int8 int16 int32 int64 uint8 short bool")


class Flow:
    """Locations of a scope's values. Walks its statements in order; ``kinds`` holds every expression's."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.kinds: dict[ast.AST, Kind] = {}
        self.losses: dict[ast.AST, frozenset[str]] = {}
        self._backward = _by_scope(program)
        self.made: dict[ast.AST, ast.AST] = {}
        self._env: dict[str, Kind] = {}
        self._made_at: dict[str, ast.AST] = {}
        self._loss_names: frozenset[str] = frozenset()
        module_env = self._scope(program.tree, {})
        for function in program.functions:
            self._scope(function, {**module_env, **self._parameters(function)})

    def kind(self, node: ast.AST) -> Kind:
        """The location of an expression's value."""
        return self.kinds.get(node, Kind.UNKNOWN)

    def of_loss(self, node: ast.AST) -> bool:
        """Whether an expression is made from the loss of its scope."""
        losses = self.losses.get(self._program.scope(node), frozenset())
        return any(self._program.name(part) in losses for part in ast.walk(node))

    def _scope(self, scope: ast.Module | Function, env: dict[str, Kind]) -> dict[str, Kind]:
        self._loss_names = self.losses[scope] = self._losses_of(scope)
        self._env = {**env, **{name: Kind.DEVICE for name in self._loss_names if env.get(name) is not Kind.HOST}}
        self._made_at = {}
        self._block(scope.body)
        return self._env

    def _losses_of(self, scope: ast.AST) -> frozenset[str]:
        return frozenset(name for call in self._backward.get(scope, ()) for name in _loss_names(self._program, call))

    def _parameters(self, function: Function) -> dict[str, Kind]:
        """A module's inputs lie where the module does; of other parameters nothing is known."""
        owner = self._program.parents.get(function)
        inputs = function.name == "forward" and owner in self._program.modules
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        return {name: Kind.MAYBE if inputs and name != "self" else Kind.UNKNOWN for name in names}

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return
            case ast.ClassDef():
                return
            case ast.Assign(targets=targets, value=value):
                kind = self._eval(value)
                for target in targets:
                    self._bind(target, kind, node)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(target, self._eval(value), node)
            case ast.AugAssign(target=target, value=value):
                self._bind(target, _joined([self._eval(target), self._eval(value)]), node)
            case ast.For() | ast.AsyncFor():
                iterated = self._eval(node.iter)
                self._bind(node.target, Kind.MAYBE if iterated in _TENSORS else Kind.UNKNOWN, node)
                self._block([*node.body, *node.orelse])
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._eval(item.context_expr)
                self._block(node.body)
            case _:
                self._parts(node)

    def _parts(self, node: ast.AST) -> None:
        """Expressions and blocks of a statement that binds nothing, in their order."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._eval(child)
            elif isinstance(child, ast.stmt):
                self._statement(child)
            else:
                self._parts(child)

    def _bind(self, target: ast.expr, kind: Kind, where: ast.AST) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._bind(element, Kind.UNKNOWN if kind is Kind.FRESH else kind, where)
            return
        if isinstance(target, ast.Starred):
            target = target.value
        if not (name := self._program.name(target)):
            return
        forced = name in self._loss_names and kind in (Kind.UNKNOWN, Kind.MAYBE)
        known = Kind.UNKNOWN if name in self._program.models else kind
        self._env[name] = Kind.DEVICE if forced else known
        self._made_at[name] = where

    def _eval(self, node: ast.expr) -> Kind:
        kind = self._kind_of(node)
        self.kinds[node] = kind
        return kind

    def _kind_of(self, node: ast.expr) -> Kind:
        match node:
            case ast.Constant() | ast.Lambda():
                return Kind.HOST
            case ast.JoinedStr() | ast.FormattedValue():
                self._parts(node)
                return Kind.HOST
            case ast.Name():
                return self._named(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
            case _:
                return self._compound(node)

    def _compound(self, node: ast.expr) -> Kind:
        parts = [self._eval(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        match node:
            case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.IfExp():
                return _joined(parts)
            case ast.Compare(ops=ops) if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in ops):
                return Kind.HOST
            case ast.Compare() | ast.Tuple() | ast.List() | ast.Starred():
                return _without_fresh(_joined(parts))
            case ast.Subscript(value=value):
                return _without_fresh(self.kind(value))
            case ast.NamedExpr(target=target, value=value):
                self._bind(target, self.kind(value), node)
                return self.kind(value)
            case _:
                self._parts(node)
                return Kind.UNKNOWN

    def _named(self, node: ast.Name | ast.Attribute) -> Kind:
        name = self._program.name(node)
        kind = self._env.get(name, Kind.UNKNOWN)
        if kind is Kind.FRESH and name in self._made_at:
            self.made[node] = self._made_at[name]
        return kind

    def _attribute(self, node: ast.Attribute) -> Kind:
        if self._program.name(node) in self._env:
            return self._named(node)
        kind = self._eval(node.value)
        return Kind.HOST if node.attr in _HOST_ATTRIBUTES else _without_fresh(kind)

    def _call(self, node: ast.Call) -> Kind:
        given = [self._eval(part) for part in (*node.args, *(keyword.value for keyword in node.keywords))]
        name = self._program.called(node)
        if name in _HOST_BUILTINS:
            return Kind.HOST
        if name in FACTORIES:
            placed = any(keyword.arg in ("device", None) for keyword in node.keywords)
            return Kind.UNKNOWN if placed else Kind.FRESH
        if name.startswith("torch."):
            return _joined([Kind.UNKNOWN, *given])
        result = self._method(node) if isinstance(node.func, ast.Attribute) else Kind.UNKNOWN
        if self._program.is_model(node.func):
            return Kind.DEVICE
        if result is Kind.UNKNOWN and any(kind in _TENSORS for kind in given):
            return Kind.MAYBE
        return result

    def _method(self, node: ast.Call) -> Kind:
        """The location of a method's result, by the method's name and by its object."""
        assert isinstance(node.func, ast.Attribute)
        receiver = self._eval(node.func.value)
        if node.func.attr in ("to", "cuda"):
            return _moved(self._program, node, receiver)
        if node.func.attr in _HOST_METHODS:
            return Kind.HOST
        return Kind.UNKNOWN if receiver is Kind.HOST else receiver


_TENSORS = (Kind.DEVICE, Kind.MAYBE)


def moves_to_device(program: Program, call: ast.Call) -> bool:
    """Whether a call is ``x.cuda()``, or an ``x.to(…)`` that names a device other than the CPU."""
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda":
        return True
    named = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "device")]
    return (
        call.func.attr == "to" and bool(named) and not _is_dtype(program, named[0]) and not _is_cpu(program, named[0])
    )


def _moved(program: Program, call: ast.Call, receiver: Kind) -> Kind:
    if moves_to_device(program, call):
        return Kind.DEVICE
    return Kind.HOST if call.args and _is_cpu(program, call.args[0]) else receiver


def _is_dtype(program: Program, node: ast.expr) -> bool:
    head, _, last = program.name(node).rpartition(".")
    return (head == "torch" and last in _DTYPES) or last == "dtype"


def _is_cpu(program: Program, node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and program.called(node) == "torch.device" and node.args:
        node = node.args[0]
    return isinstance(node, ast.Constant) and node.value == "cpu"


def _joined(kinds: Sequence[Kind]) -> Kind:
    for kind in (Kind.DEVICE, Kind.MAYBE, Kind.UNKNOWN, Kind.FRESH):
        if kind in kinds:
            return kind
    return Kind.HOST


def _without_fresh(kind: Kind) -> Kind:
    return Kind.HOST if kind is Kind.FRESH else kind


def _loss_names(program: Program, call: ast.Call) -> Iterator[str]:
    assert isinstance(call.func, ast.Attribute)
    receiver = call.func.value
    driver = program.name(receiver).rpartition(".")[2] in _DRIVERS
    yield from _roots(program, call.args[0] if driver and call.args else receiver)


def _roots(program: Program, node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Name() | ast.Attribute():
            if name := program.name(node):
                yield name
        case ast.Subscript(value=value):
            yield from _roots(program, value)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            yield from _roots(program, left)
            yield from _roots(program, right)
        case ast.BinOp(left=left, right=right):
            yield from _roots(program, right if isinstance(left, ast.Constant) else left)
        case ast.Call(func=ast.Attribute(attr="scale"), args=[scaled, *_]):
            yield from _roots(program, scaled)
        case ast.Call(func=ast.Attribute(attr="mean" | "sum", value=value)):
            yield from _roots(program, value)


def _by_scope(program: Program) -> dict[ast.AST, list[ast.Call]]:
    found: dict[ast.AST, list[ast.Call]] = {}
    for call in filter(is_backward, program.calls):
        found.setdefault(program.scope(call), []).append(call)
    return found
