"""Infers from a program's text whether a value lies on the host or on the device.

The rules in ``habits`` ask this. Where the text does not say, the answer is "unknown", and a rule that gets it keeps
silent: a finding that is wrong costs more trust than one that is missing.
"""

import ast
from collections.abc import Iterable
from enum import Enum, auto

from advisor.source.program import Program, is_backward


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


class Kind(Enum):
    """Location of a value, as far as the text tells.

    ``FRESH``: a constant that was just made on the host. ``MAYBE``: from a call that was given a device's tensor.
    """

    HOST = auto()
    FRESH = auto()
    DEVICE = auto()
    MAYBE = auto()
    UNKNOWN = auto()


ON_DEVICE = (Kind.DEVICE, Kind.MAYBE)
_FACTORY_NAMES = "zeros ones rand randn randint randperm full empty eye arange linspace"
FACTORIES = frozenset(f"torch.{name}" for name in words(_FACTORY_NAMES))
_HOST_METHODS = words("item tolist numpy cpu size dim numel nelement ndimension stride data_ptr keys")
_HOST_ATTRIBUTES = words("shape dtype device ndim requires_grad is_cuda is_sparse layout grad_fn is_leaf")
_HOST_BUILTINS = words("len int float str bool range isinstance hasattr type id repr callable round")
_DTYPES = words("dtype float bfloat half double long int uint short bool")


class Flow(Program):
    """A program whose values are located; ``losses`` has the names that each scope runs a backward pass of."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree)
        self._kinds: dict[ast.AST, Kind] = {}
        self.losses: dict[ast.AST, set[str]] = {}
        for call in filter(is_backward, self.calls):
            self.losses.setdefault(self.scope(call), set()).update({self.name(_loss(call))} - {""})
        for _, value in sorted((each for found in self._assigned.values() for each in found), key=lambda each: each[0]):
            self.kind(value)  # from above, so that no chain of assignments is followed at once

    def kind(self, node: ast.AST) -> Kind:
        """The location of an expression's value; of a statement's, that of what it assigns."""
        if node not in self._kinds:
            self._kinds[node] = self._kind_of(node)
        return self._kinds[node]

    def losses_at(self, node: ast.AST) -> set[str]:
        """The names of the losses in a node's scope."""
        return self.losses.get(self.scope(node), set())

    def moves_to_device(self, call: ast.Call) -> bool:
        """Whether a call is ``x.cuda()``, or an ``x.to(…)`` that names a device other than the CPU."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("to", "cuda"):
            return False
        named = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "device")]
        is_dtype = bool(named) and self.name(named[0]).rpartition(".")[2].rstrip("0123456789") in _DTYPES
        return call.func.attr == "cuda" or (bool(named) and not is_dtype and not names_cpu(named[0]))

    def _named(self, node: ast.Name | ast.Attribute) -> Kind:
        """The location of a name's value: that of the last one assigned above. A loss is on the device unless read."""
        name, latest = self.name(node), self.latest(node)
        kind = self.kind(latest) if latest is not None and name not in self.models else Kind.UNKNOWN
        if name in self.losses_at(node) and kind in (Kind.UNKNOWN, Kind.MAYBE):
            return Kind.DEVICE
        if latest is None and isinstance(node, ast.Attribute):
            return Kind.HOST if node.attr in _HOST_ATTRIBUTES else _kept(self.kind(node.value))
        return kind

    def _kind_of(self, node: ast.AST) -> Kind:
        kind = Kind.UNKNOWN
        match node:
            case ast.Name() | ast.Attribute():
                return self._named(node)
            case ast.Call():
                return self._call(node)
            case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.IfExp():
                return _joined(self.kind(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
            case ast.AugAssign(target=target, value=value):
                kind = _joined([self._named(target), self.kind(value)]) if isinstance(target, ast.Name) else kind
            case ast.Compare(ops=ops) if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in ops):
                kind = Kind.HOST
            case ast.Compare() | ast.Tuple() | ast.List():
                kind = _joined(self.kind(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
            case ast.Assign(value=value) | ast.Subscript(value=value) | ast.Starred(value=value):
                kind = self.kind(value)
            case ast.NamedExpr(value=value):
                kind = self.kind(value)
            case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated):
                kind = Kind.MAYBE if self.kind(iterated) in ON_DEVICE else kind
            case ast.arg() if node.arg != "self" and self.scope(node) in self.forwards:
                kind = Kind.MAYBE  # a module's inputs lie where the module does
            case ast.Constant() | ast.JoinedStr() | ast.FormattedValue() | ast.Lambda():
                kind = Kind.HOST
        return _kept(kind)

    def _call(self, node: ast.Call) -> Kind:
        given = [self.kind(part) for part in (*node.args, *(keyword.value for keyword in node.keywords))]
        name = self.called(node)
        if name in _HOST_BUILTINS:
            return Kind.HOST
        if name in FACTORIES:
            return Kind.UNKNOWN if any(keyword.arg in ("device", None) for keyword in node.keywords) else Kind.FRESH
        if name.startswith("torch."):
            return _joined([Kind.UNKNOWN, *given])
        result = Kind.UNKNOWN
        if isinstance(node.func, ast.Attribute):
            receiver = self.kind(node.func.value)
            if self.moves_to_device(node):
                result = Kind.DEVICE
            elif node.func.attr in _HOST_METHODS or (node.func.attr == "to" and any(map(names_cpu, node.args))):
                result = Kind.HOST
            elif receiver is not Kind.HOST:
                result = receiver
        if self.name(node.func) in self.models:
            return Kind.DEVICE
        return Kind.MAYBE if result is Kind.UNKNOWN and any(kind in ON_DEVICE for kind in given) else result


def names_cpu(node: ast.AST) -> bool:
    """Whether an expression is ``"cpu"`` or ``torch.device("cpu")``."""
    return any(isinstance(part, ast.Constant) and part.value == "cpu" for part in ast.walk(node))


def _joined(kinds: Iterable[Kind]) -> Kind:
    found = set(kinds)
    return next((k for k in (Kind.DEVICE, Kind.MAYBE, Kind.UNKNOWN, Kind.FRESH) if k in found), Kind.HOST)


def _kept(kind: Kind) -> Kind:
    """The location of a part of a value: what was made on the host is then not copied as it is."""
    return Kind.HOST if kind is Kind.FRESH else kind


def _loss(node: ast.expr) -> ast.expr:
    """The value that a backward pass is of: `(loss / n).backward()`, `accelerator.backward(loss)`, `scale(loss)`."""
    match node:
        case ast.Call(args=[first, *_]) | ast.BinOp(left=ast.Constant(), right=first) | ast.BinOp(left=first):
            return _loss(first)
        case ast.Call(func=ast.Attribute(value=value)) | ast.Subscript(value=value):
            return _loss(value)
    return node
