"""What can be told of a program by reading it: names, loops that train, where a value lies. Nothing is run.

The rules in ``source_habits`` ask these questions. Where the text does not say, the answer is "unknown", and a rule
that gets it keeps silent: a finding that is wrong costs more trust than one that is missing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

from advisor.source.branches import Branch, Branches, is_main_guard

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
_LOADER_NAME = re.compile(r"(^|[._])(data_?)?loaders?$", re.IGNORECASE)
_BACKWARD = frozenset({"backward", "manual_backward"})
# Objects that run the backward pass of a loss which they are given.
_DRIVERS = frozenset({"accelerator", "fabric", "engine", "model_engine", "strategy", "self"})
_ROUNDS = 4
# Names that methods of optimizers, models and many others have: only `self.step()` is then known to be the file's own.
_COMMON_NAMES = frozenset({"step", "backward", "update", "run", "forward", "train", "fit", "eval"})


class Kind(Enum):
    """Where a value lies, as far as the text tells. ``MAYBE`` comes from a call that was given a device's tensor."""

    HOST = auto()
    FRESH = auto()
    DEVICE = auto()
    MAYBE = auto()
    UNKNOWN = auto()


class Program:
    """A module's tree with what rules ask of it: parents, imported names, and the places that run at every step."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes = list(ast.walk(tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self._branches = Branches(self.parents)
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
        """The dotted name of what a call calls."""
        return self.name(call.func)

    def is_model(self, node: ast.AST) -> bool:
        """Whether a name is used as a model somewhere: it is put into a mode, or asked for its parameters."""
        return self.name(node) in self.models

    # --- where a node stands -----------------------------------------------------------------------------------

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Each ancestor with its child on the way to the node, from the inside out."""
        return self._branches.above(node)

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

    def branches(self, node: ast.AST, root: ast.AST) -> frozenset[Branch]:
        """The conditions between a node and ``root`` that decide whether it runs."""
        return self._branches.between(node, root)

    def conditional(self, node: ast.AST) -> bool:
        """Whether a node runs under a condition in its function or module; being the main program is none."""
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
            self._owners[call] = self._owner_of(call)
        return self._owners[call]

    def _owner_of(self, call: ast.Call) -> Loop | Function | None:
        for parent, child in self.above(call):
            if isinstance(parent, Loop) and child in parent.body:
                return parent
            if isinstance(parent, Function):
                return parent
            if isinstance(parent, ast.Lambda | ast.ClassDef):
                return None
        return None

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


# --- where values lie -----------------------------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HOST_METHODS = _words("item tolist numpy cpu size dim numel nelement ndimension stride data_ptr get_device keys")
_HOST_ATTRIBUTES = _words("shape dtype device ndim requires_grad is_cuda is_sparse layout grad_fn is_leaf")
_HOST_BUILTINS = _words("len int float str bool range isinstance hasattr type id repr callable issubclass round")
_FACTORY_NAMES = _words("zeros ones rand randn randint randperm full empty eye arange linspace")
FACTORIES = frozenset(f"torch.{name}" for name in _FACTORY_NAMES)
_DTYPES = _words("float float16 float32 float64 bfloat16 half double long int int8 int16 int32 int64 uint8 short bool")


class Flow:
    """Where the values of a scope lie. Walks its statements in their order; ``kinds`` holds every expression's."""

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
        """Where an expression's value lies."""
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
        """An expression that is made of others."""
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
        """What a method returns, by its name and by what it is called on."""
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
    """The names of what a backward pass starts from."""
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


# --- small questions ------------------------------------------------------------------------------------------


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


def _by_last_name(calls: Sequence[ast.Call], called: Callable[[ast.Call], str]) -> dict[str, list[ast.Call]]:
    found: dict[str, list[ast.Call]] = {}
    for call in calls:
        found.setdefault(called(call).rpartition(".")[2], []).append(call)
    return found


def _by_scope(program: Program) -> dict[ast.AST, list[ast.Call]]:
    """The backward passes of each scope."""
    found: dict[ast.AST, list[ast.Call]] = {}
    for call in filter(is_backward, program.calls):
        found.setdefault(program.scope(call), []).append(call)
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
