"""One command at two git revisions, each in a separate checkout."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from advisor.errors import UsageError
from advisor.files.scratch import scratch_folder
from advisor.proof.commands import Command


@contextlib.contextmanager
def sides_of(commands: Sequence[str], revisions: Sequence[str]) -> Iterator[tuple[Command, Command, Path]]:
    """The two commands, and a new folder for what they leave.

    Those of git revisions run in checkouts of their own, which are removed at the end.
    """
    if len(commands) != (1 if revisions else 2):
        what = "one command, to be run at two revisions" if revisions else "two commands"
        raise UsageError(
            f"ab compares {what}, and {len(commands)} came.",
            'Put each in quotes: `perf-advisor ab "python train.py" "python train_fast.py"`.',
        )
    here, folder = Path.cwd(), Path(tempfile.mkdtemp(prefix="ab-", dir=scratch_folder()))
    if not revisions:
        first, second = commands
        yield Command("A", first, str(here)), Command("B", second, str(here)), folder
        return
    top = Path(_git("rev-parse", "--show-toplevel"))
    checkouts: list[Path] = []
    try:
        for side, revision in zip("AB", revisions, strict=True):
            _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", named=revision)
            checkout = folder / f"revision-{side}"
            _git("worktree", "add", "--detach", str(checkout), revision, named=revision)
            checkouts.append(checkout)
        a, b = (str(checkout / here.relative_to(top)) for checkout in checkouts)
        for inside, revision in zip((a, b), revisions, strict=True):
            if not Path(inside).is_dir():
                raise UsageError(f"{revision} has no folder {here.relative_to(top)}.", "Run it from one that it has.")
        yield Command("A", commands[0], a), Command("B", commands[0], b), folder
    finally:
        for checkout in checkouts:
            _git("worktree", "remove", "--force", str(checkout))


def _git(*arguments: str, named: str = "") -> str:
    """What git prints. Raises UsageError where it fails; ``named`` is the revision in question."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607 - the user's own
    except FileNotFoundError:
        raise UsageError("--rev needs git, which is not installed.", "Name two commands instead.") from None
    if done.returncode:
        wrong = f"git knows no revision {named!r} here." if named else f"git says: {done.stderr.strip()}"
        raise UsageError(wrong, "Run it inside the repository, and name branches, tags or commits of it.")
    return done.stdout.strip()
