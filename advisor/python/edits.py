"""Change a Python file at known places. All other bytes stay the same. Needs no torch."""

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst import matchers
from libcst.metadata import MetadataWrapper, PositionProvider

from advisor.records import Place

# The first line and column of a node, with its last line and column (Position) or without (Start).
Position = tuple[int, int, int, int]
Start = tuple[int, int]
_COLLATES = "torch.utils.data.default_collate"  # the collate_fn of a loader that sets none
_OF_LOADER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
_LOADER_DEFAULTS = {"num_workers": "0", "pin_memory": "False", "persistent_workers": "False", "prefetch_factor": "None"}
_BETWEEN_IMPORTS = 4  # the number of other statements that may stand between two top-level imports
_TORCH = matchers.Name("torch")
_AUTOCAST = matchers.Call(
    func=matchers.Attribute(
        value=_TORCH | matchers.Attribute(value=_TORCH, attr=matchers.Name("amp")), attr=matchers.Name("autocast")
    )
)
_NO_GRAD = matchers.Call(func=matchers.Attribute(value=_TORCH, attr=matchers.Name("no_grad")))
_APART = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


@dataclass(slots=True)
class Piece:
    """A change of some statements of a block: put them under ``with``, or move them into a function above the loop."""

    contexts: list[str] = field(default_factory=list)
    name: str = ""  # the name of the function
    decorator: str = ""
    wrapped: str = ""  # an expression that wraps the function ``{}``; its result is called instead
    above: Start | None = None  # if the statements are in a function that the loop calls, the new one goes above it


@dataclass(slots=True)
class Edits:
    """The changes of one file. Keys are the positions of calls and statements; values are lines of Python."""

    arguments: dict[Position, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))  # "" removes one
    before: dict[Start, list[str]] = field(default_factory=lambda: defaultdict(list))
    after: dict[Start, list[str]] = field(default_factory=lambda: defaultdict(list))
    pieces: dict[Place, Piece] = field(default_factory=lambda: defaultdict(Piece))
    loop: Start = (0, 0)
    switches: dict[str, str] = field(default_factory=dict)  # the name that is set or called -> the statement
    imports: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)  # before all other imports
    definitions: list[str] = field(default_factory=list)  # after the imports
    evaluations: set[int] = field(default_factory=set)  # lines in functions that need no gradients
    header: str = ""


def start_of(place: Place) -> Start:
    """The position of the beginning of a place."""
    return place.line, place.column


def edited(source: bytes, edits: Edits) -> tuple[bytes, list[int]]:
    """A file's bytes with the changes, and the lines of the positions where no call or statement was found.

    Raises ``libcst.ParserSyntaxError`` if the file is not Python.
    """
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    editor = _Editor(edits, wrapper.module)
    after: Any = wrapper.visit(editor)
    switches = [text for what, text in edits.switches.items() if what not in editor.done]
    text = _with_top(after.code, wrapper.module.code, after.default_newline, edits, switches)
    wanted: set[Any] = {*edits.arguments, *edits.before, *edits.after, *map(start_of, edits.pieces)}
    return text.encode(after.encoding), sorted(where[0] for where in wanted - editor.done)


class _Editor(cst.CSTTransformer):
    """Makes the changes of a module, the innermost first. ``done`` are the positions that were found."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, edits: Edits, module: cst.Module) -> None:
        super().__init__()
        self._edits = edits
        self._module = module
        self._functions: dict[Start, list[Any]] = defaultdict(list)  # go above the loop or function there
        self.done: set[Any] = set()

    def _position(self, node: cst.CSTNode) -> Position:
        where: Any = self.get_metadata(PositionProvider, node)
        return where.start.line, where.start.column, where.end.line, where.end.column

    def _lines(self, lines: Iterable[str]) -> list[Any]:
        """The nodes of these lines (statements and comments), with the line ends and the indentation of the file."""
        text = "\n".join(lines).replace("\n", self._module.default_newline)
        parsed = cst.parse_module(text, config=self._module.config_for_parsing)
        return [*parsed.header, *parsed.body, *parsed.footer]

    def _code(self, node: cst.CSTNode) -> str:
        return self._module.code_for_node(node)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Change the arguments of a call."""
        where = self._position(original_node)
        self.done.add(where)
        for name, value in self._edits.arguments.get(where, {}).items():
            if value:
                updated_node = self._with_argument(updated_node, name, value)
                continue
            args = [one for one in updated_node.args if not (one.keyword and one.keyword.value == name)]
            if args and args[-1] is not (last := updated_node.args[-1]):
                args[-1] = args[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
            updated_node = updated_node.with_changes(args=args)
        return updated_node

    def _with_argument(self, call: cst.Call, name: str, value: str) -> cst.Call:
        """Set an argument of a call: replace the old value, or add it to ``**options``, or add it at the end."""
        old = next((one for one in call.args if one.keyword and one.keyword.value == name), None)
        plain = [one for one in call.args if not one.keyword and not one.star]
        if name in _OF_LOADER[: len(plain)]:
            old = plain[_OF_LOADER.index(name)]
        options = next((one for one in call.args if one.star == "**"), None)
        if old is None and options is not None:
            inner = self._code(options.value)
            value = value.replace("{}", f'{inner}.get("{name}", {_COLLATES})')
            merged = inner if inner.startswith("{**") else f"{{**{inner}}}"
            return call.with_deep_changes(options, value=cst.parse_expression(f'{merged[:-1]}, "{name}": {value}}}'))
        if old is None and _LOADER_DEFAULTS.get(name) == value and self._code(call.func).endswith("DataLoader"):
            return call
        text = f"call({name}={value.replace('{}', self._code(old.value) if old else _COLLATES)})"
        new = cst.ensure_type(cst.parse_expression(text), cst.Call).args[0]
        if old is not None:
            return call.with_deep_changes(old, value=new.value)
        *others, last = call.args or [new]
        if last is new:
            return call.with_changes(args=[new])
        # Between the arguments as between the others, and at the end as it was. Comments stay behind their arguments.
        new = new.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
        between: Any = others[-1].comma if others else _APART
        end = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else last.whitespace_after_arg
        if isinstance(space := between.whitespace_after, cst.ParenthesizedWhitespace):
            own = end.first_line if isinstance(end, cst.ParenthesizedWhitespace) else cst.TrailingWhitespace()
            between = between.with_changes(whitespace_after=space.with_changes(first_line=own, empty_lines=()))
            new = new.with_deep_changes(own, whitespace=cst.SimpleWhitespace(""), comment=None)
        last = last.with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace(""))
        return call.with_changes(args=[*others, last, new])

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Decorate a function that evaluates with ``torch.no_grad()``."""
        first, _, last, _ = self._position(original_node)
        lines = {line for line in self._edits.evaluations - self.done if first <= line <= last}
        if not lines or "backward(" in self._code(original_node.body):
            return updated_node
        self.done |= lines
        new = cst.Decorator(cst.parse_expression("torch.no_grad()"))
        return updated_node.with_changes(decorators=[*updated_node.decorators, new])

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """Replace a statement that sets the same as a switch. The switch is then not added at the top."""
        what = what_it_sets(self._code(original_node.body[0])) if self._edits.switches else ""
        if len(original_node.body) != 1 or what not in self._edits.switches:
            return updated_node
        self.done.add(what)
        return updated_node.with_changes(body=self._lines([self._edits.switches[what]])[0].body)

    # --- blocks of statements -------------------------------------------------------------------------------------

    def leave_IndentedBlock(self, original_node: Any, updated_node: Any) -> Any:
        """Change the pieces of a block, and add lines around its statements."""
        starts = [self._position(one)[:2] for one in original_node.body]
        rows: dict[Start, list[Any]] = {start: [one] for start, one in zip(starts, updated_node.body, strict=True)}
        for place, piece in self._edits.pieces.items():
            if (first := start_of(place)) in rows:
                inside = [start for start in starts if first <= start and start[0] <= place.end_line]
                within = [one for start in inside if start[0] not in place.behind for one in rows[start]]
                behind = [one for start in inside if start[0] in place.behind for one in rows[start]]
                rows |= {start: [] for start in inside} | {first: [*self._changed(within, place, piece), *behind]}
        parts = list[Any]()
        for start, row in rows.items():
            self.done.add(start)
            if row and (functions := self._functions.pop(start, [])):
                blanks = 2 if isinstance(original_node, cst.Module) else 1
                parts += [_behind_blanks(functions[0], blanks), *functions[1:]]
                row[0] = _behind_blanks(row[0], blanks)
            parts += [*self._lines(self._edits.before.get(start, ())), *row]
            parts += self._lines(self._edits.after.get(start, ()))
        body, waiting = list[Any](), list[cst.EmptyLine]()  # comment lines belong to the next statement
        for part in parts:
            if isinstance(part, cst.EmptyLine):
                waiting.append(part)
            else:
                body.append(part.with_changes(leading_lines=[*waiting, *part.leading_lines]) if waiting else part)
                waiting = []
        footer = [*waiting, *updated_node.footer] if waiting else updated_node.footer
        return updated_node.with_changes(body=body, footer=footer)

    leave_Module = leave_IndentedBlock

    def _changed(self, inside: list[Any], place: Place, piece: Piece) -> list[Any]:
        """The new statements for a piece: the old statements under ``with``, or a call of a function that has them."""
        above = inside[0].leading_lines
        inside[0] = inside[0].with_changes(leading_lines=())
        if piece.contexts:
            inside = list(_entering(self._lines([f"with {', '.join(piece.contexts)}:\n    pass"])[0], inside))
        if piece.name:
            takes, gives, loop = ", ".join(place.takes), ", ".join(place.gives), self._edits.loop
            body = [*inside, *(self._lines([f"return {gives}"]) if gives else [])]
            head = [piece.decorator] if piece.decorator else []
            function = self._lines([*head, f"def {piece.name}({takes}):\n    pass"])[0]
            self._functions[piece.above or loop].append(function.with_changes(body=cst.IndentedBlock(body)))
            if piece.wrapped:
                captured = self._lines([f"{piece.name} = {piece.wrapped.format(piece.name)}"])
                self._functions[loop].append(_behind_blanks(captured[0], 1))
            inside = self._lines([f"{gives} = {piece.name}({takes})" if gives else f"{piece.name}({takes})"])
        inside[0] = inside[0].with_changes(leading_lines=above)
        return inside


def _with_top(code: str, before: str, newline: str, edits: Edits, switches: Sequence[str]) -> str:
    """Add lines to a file's text: some before all imports, the others after the imports."""
    tree = ast.parse(code)
    body, docstring = tree.body, int(ast.get_docstring(tree) is not None)
    end = docstring  # the end of the imports at the top; later imports do not count
    for at, one in enumerate(body[docstring:], docstring):
        if isinstance(one, ast.Import | ast.ImportFrom):
            end = at + 1
        elif at - end >= _BETWEEN_IMPORTS or (hasattr(one, "body") and not isinstance(one, ast.Try | ast.If)):
            break
    added = "".join([code, *switches, *edits.definitions])
    wanted = {*edits.imports, *(["import torch"] if added.count("torch.") > before.count("torch.") else [])}
    imports = [line for line in wanted if not _imported_by(ast.parse(line).body) <= _imported_by(body[:end])]
    top = [edits.header] if edits.header and edits.header not in before else []
    top = ["", *top, *switches] if switches or "\n" in edits.header else []
    # Above each definition are two empty lines.
    new = [*sorted(imports, key=lambda line: (line[:4], line)), *top, *(f"\n\n{text}" for text in edits.definitions)]
    futures = [at for at, one in enumerate(body) if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    begin = futures[-1] + 1 if futures else docstring
    lines = code.split("\n")
    for count, texts in ((end, new), (begin, [line for line in edits.first if line not in before])):
        place = (body[count - 1].end_lineno or 0) if count else body[0].lineno - 1
        lines[place:place] = [line + newline[:-1] for text in texts for line in text.split("\n")]
    return "\n".join(lines)


def _imported_by(statements: Iterable[ast.stmt]) -> set[str]:
    """The names that import statements bind: ``torch`` for ``import torch.nn``."""
    imports = (one for one in statements if isinstance(one, ast.Import | ast.ImportFrom))
    return {each.asname or each.name.partition(".")[0] for one in imports for each in one.names}


def what_it_sets(statement: str) -> str:
    """The name that a statement sets: the target of an assignment, or the function of a call (a setter)."""
    match ast.parse(statement.strip()).body:
        case [ast.Assign(targets=[target])]:
            return ast.unparse(target)
        case [ast.Expr(ast.Call(func=ast.Attribute() as function))]:
            return ast.unparse(function)
    return ""


def _entering(block: cst.With, statements: list[Any]) -> Iterator[Any]:
    """Put statements under a ``with``. The script's own ``with`` gets the contexts at its end, so they are not undone.

    A new autocast replaces the script's autocast. A ``with torch.no_grad()`` undoes no context, so it is treated like
    other statements. Statements beside a ``with`` that contain no call stay outside.
    """
    alone = all(isinstance(one, cst.With) for one in statements)
    casts = any(matchers.matches(one.item, _AUTOCAST) for one in block.items)

    def may_undo(one: Any) -> bool:
        return isinstance(one, cst.With) and (alone or not all(matchers.matches(it.item, _NO_GRAD) for it in one.items))

    for is_own, group in itertools.groupby(statements, may_undo):
        inside = list(group)
        if is_own:
            for own in inside:
                kept = [one for one in own.items if not (casts and matchers.matches(one.item, _AUTOCAST))]
                apart = (one.with_changes(comma=_APART) for one in [*kept, *block.items[:-1]])
                yield own.with_changes(items=[*apart, block.items[-1]])
        elif any(matchers.findall(one, matchers.Call()) for one in inside):
            above, inside[0] = inside[0].leading_lines, inside[0].with_changes(leading_lines=())
            yield block.with_changes(body=cst.IndentedBlock(inside), leading_lines=above)
        else:
            yield from inside


def _behind_blanks(statement: Any, number: int) -> Any:
    """Return a statement with at least this number of empty lines above it and its comments."""
    there = list(itertools.takewhile(lambda line: line.comment is None, statement.leading_lines))
    more = [cst.EmptyLine(indent=False)] * (number - len(there))
    return statement.with_changes(leading_lines=[*more, *statement.leading_lines])
