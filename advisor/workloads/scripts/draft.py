"""Write a ``build()`` to complete, from the lines of a watched script. ``init`` runs this file as a program."""

import ast
import json
import linecache
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.records import Place
from advisor.workloads.scripts.plain import batch_in_head
from advisor.workloads.scripts.run import check_seen, places_of, watched
from advisor.workloads.scripts.watch import NoLoopError, Seen

_HEAD = '''"""The parts of {script} that perf-advisor measures, in its own lines. Complete the lines with TODO.

Then type: perf-advisor {file}
"""

{imports}


def build():
    # TODO: define what these lines read from the rest of {script}
'''


def main(script: str, file: str, result: str) -> None:
    """Watch ``script``, whose arguments are in ``sys.argv``. Write the text of ``file``, or the error, as JSON."""
    os.environ["TMPDIR"] = str(Path(result).parent)
    try:
        outcome = {"text": draft_of(script, file)}
    except AdvisorError as error:
        outcome = {"message": error.message, "hint": error.hint, "details": error.details}
    Path(result).write_text(json.dumps(outcome), encoding="utf-8")


def draft_of(script: str, file: str) -> str:
    """The text of ``file``. Raises TargetError if ``script`` fails or does not train."""
    from advisor.workloads.entrypoint import in_user_code

    seen = in_user_code(f"running {script}", lambda: watched(script, str(Path.cwd())))
    check_seen(script, seen)
    places = [place for place in places_of(seen, seen.models) if place.kind in ("model", "optimizer", "loader")]
    imports = ["import advisor", *_imports(Path(script))]
    models, optimizers, loaders = (_names(places, kind) or [kind] for kind in ("model", "optimizer", "loader"))
    parts = f"step=step, models=[{', '.join(models)}], optimizers=[{', '.join(optimizers)}], data={loaders[0]}"
    body = [*_made(places), *_step(seen), f"return advisor.Workload({parts})"]
    head = _HEAD.format(script=script, file=file, imports="\n".join(imports))
    return head + textwrap.indent("\n".join(body), "    ") + "\n"


def _imports(script: Path) -> Iterator[str]:
    """The script's top-level imports, and an import of its definitions, with a TODO if that would run the script."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    for one in tree.body:
        if isinstance(one, ast.Import | ast.ImportFrom):
            yield f"{'# TODO: write the package: ' if getattr(one, 'level', 0) else ''}{ast.unparse(one)}"
    guarded = any(isinstance(one, ast.If) and "__name__" in ast.unparse(one.test) for one in tree.body)
    if defined := [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)]:
        mark = "" if guarded else "# TODO: copy these to here, since importing the script runs it: "
        yield f"{mark}from {script.stem} import {', '.join(defined)}"


def _made(places: Sequence[Place]) -> Iterator[str]:
    """The statements that make the parts, each below its file and line; a TODO line for each missing part."""
    statements = {(place.file, place.line): place for place in sorted(places, key=lambda place: place.line)}
    for place in statements.values():
        yield f"# {Path(place.file).name}:{place.line}"
        yield textwrap.dedent("".join(linecache.getlines(place.file)[place.line - 1 : place.end_line])).rstrip()
    missing = [kind for kind in ("model", "optimizer", "loader") if not _names(places, kind)]
    yield from (f"{kind} = ...  # TODO: make it here; no statement that makes it was seen" for kind in missing)


def _names(places: Sequence[Place], kind: str) -> list[str]:
    return list(dict.fromkeys(place.name for place in places if place.kind == kind))


def _step(seen: Seen) -> Iterator[str]:
    """The body of the loop as a function of a batch."""
    yield "\ndef step(batch):"
    try:
        loop = seen.loop
    except NoLoopError:
        yield "    loss = ...  # TODO: the whole step, from the batch to the update"
    else:
        yield f"    # the loop at {Path(loop.where.file).name}:{loop.statement.lineno}"
        body = loop.statement.body
        target = loop.statement.target if isinstance(loop.statement, ast.For) else ast.Name("_")
        item = "batch" if batch_in_head(loop, seen) in (None, target) else "(0, batch)"
        yield f"    for {ast.unparse(target)} in [{item}]:"
        lines = linecache.getlines(loop.where.file)[body[0].lineno - 1 : body[-1].end_lineno]
        start = body[0].col_offset
        lines[0] = " " * start + lines[0].encode()[start:].decode()  # the body may be on the line of the loop's head
        yield textwrap.indent(textwrap.dedent("".join(lines)), " " * 8).rstrip()
    yield "    return loss  # TODO: use the name that the loss has above\n"


if __name__ == "__main__":
    _script, _file, _result, *_arguments = sys.argv[1:]
    sys.argv = [_script, *_arguments]
    main(_script, _file, _result)
