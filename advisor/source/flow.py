"""Infers from a program's text whether a value lies on the host or on the device.

The rules in ``habits`` ask this. Where the text does not say, the answer is "unknown", and a rule that gets it keeps
silent: a finding that is wrong costs more trust than one that is missing.
"""

import ast
from collections.abc import Iterable
from enum import Enum, auto

from advisor.source.program import Function, Program, is_backward


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
    """A program whose values are located: ``kinds`` has each expression's, following the statements in their order.

    ``losses`` has the names that each scope runs a backward pass of, and ``made`` the statement that made a fresh value
    for each name that holds it.
    """

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree)
        self.kinds: dict[ast.AST, Kind] = {}
        self.made: dict[ast.AST, ast.AST] = {}
        self.losses: dict[ast.AST, set[str]] = {}
        for call in filter(is_backward, self.calls):
            self.losses.setdefault(self.scope(call), set()).update({self.name(_loss(call))} - {""})
        of_module = self._follow(tree, {})
        for function in self.functions:
            # A module's inputs lie where the module does; of other parameters nothing is known.
            inputs = function.name == "forward" and self.parents[function] in self.modules
            arguments = [one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)]
            given = {name: Kind.MAYBE if inputs and name != "self" else Kind.UNKNOWN for name in arguments}
            self._follow(function, {**of_module, **given})

    def kind(self, node: ast.AST) -> Kind:
        """The location of an expression's value."""
        return self.kinds.get(node, Kind.UNKNOWN)

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

    def _follow(self, scope: ast.Module | Function, env: dict[str, Kind]) -> dict[str, Kind]:
        self._losses = self.losses.get(scope, set())
        self._env = env | {name: Kind.DEVICE for name in self._losses if env.get(name) is not Kind.HOST}
        self._made_at: dict[str, ast.AST] = {}
        for statement in scope.body:
            self._visit(statement)
        return self._env

    def _visit(self, node: ast.AST) -> Kind:
        self.kinds[node] = kind = self._kind_of(node)
        return kind

    def _bind(self, target: ast.AST, kind: Kind, where: ast.AST) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._bind(element, Kind.UNKNOWN if kind is Kind.FRESH else kind, where)
        elif name := self.name(target.value if isinstance(target, ast.Starred) else target):
            is_loss = name in self._losses and kind in (Kind.UNKNOWN, Kind.MAYBE)
            self._env[name] = Kind.DEVICE if is_loss else Kind.UNKNOWN if name in self.models else kind
            self._made_at[name] = where

    def _kind_of(self, node: ast.AST) -> Kind:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
                return Kind.HOST  # functions are followed by themselves
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr() if node.value is not None:
                kind = self._visit(node.value)
                if isinstance(node, ast.AugAssign):
                    kind = _joined([kind, self._visit(node.target)])
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._bind(target, kind, node)
                return kind
            case ast.For() | ast.AsyncFor():
                self._bind(node.target, Kind.MAYBE if self._visit(node.iter) in ON_DEVICE else Kind.UNKNOWN, node)
                for statement in (*node.body, *node.orelse):
                    self._visit(statement)
                return Kind.UNKNOWN
            case ast.Name() | ast.Attribute() if self.name(node) in self._env:
                name = self.name(node)
                self.made[node] = self._made_at.get(name, node)
                return self._env[name]
            case ast.Call():
                return self._call(node)
        return self._composed(node)

    def _composed(self, node: ast.AST) -> Kind:
        """The location of an expression by those of its parts; statements have none."""
        parts = {part: self._visit(part) for part in ast.iter_child_nodes(node)}
        joined = _joined(kind for part, kind in parts.items() if isinstance(part, ast.expr))
        kind = Kind.UNKNOWN
        match node:
            case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.IfExp():
                return joined
            case ast.Compare(ops=ops) if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in ops):
                kind = Kind.HOST
            case ast.Compare() | ast.Tuple() | ast.List() | ast.Starred():
                kind = joined
            case ast.Attribute(value=value, attr=attribute):
                kind = Kind.HOST if attribute in _HOST_ATTRIBUTES else parts[value]
            case ast.Subscript(value=value):
                kind = parts[value]
            case ast.Constant() | ast.JoinedStr() | ast.FormattedValue():
                kind = Kind.HOST
        return Kind.HOST if kind is Kind.FRESH else kind

    def _call(self, node: ast.Call) -> Kind:
        given = [self._visit(part) for part in (*node.args, *(keyword.value for keyword in node.keywords))]
        name = self.called(node)
        if name in _HOST_BUILTINS:
            return Kind.HOST
        if name in FACTORIES:
            return Kind.UNKNOWN if any(keyword.arg in ("device", None) for keyword in node.keywords) else Kind.FRESH
        if name.startswith("torch."):
            return _joined([Kind.UNKNOWN, *given])
        result = Kind.UNKNOWN
        if isinstance(node.func, ast.Attribute):
            receiver = self._visit(node.func.value)
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


def _loss(node: ast.expr) -> ast.expr:
    """The value that a backward pass is of: `(loss / n).backward()`, `accelerator.backward(loss)`, `scale(loss)`."""
    match node:
        case ast.Call(args=[first, *_]) | ast.BinOp(left=ast.Constant(), right=first) | ast.BinOp(left=first):
            return _loss(first)
        case ast.Call(func=ast.Attribute(value=value)) | ast.Subscript(value=value):
            return _loss(value)
    return node
