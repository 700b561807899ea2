"""``perf-advisor converge``: whether a training with exported settings learns as well as without them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from advisor.cli.options import INPUTS
from advisor.cli.parser import Parser, split_arguments, target_of
from advisor.errors import ExitCode, UsageError
from advisor.export.files import check_target_of, write_atomically
from advisor.files.paths import check_target
from advisor.records import Mode, TargetSpec

if TYPE_CHECKING:
    from advisor.experiment.measuring.convergence import Convergence

_WIDTH, _HEIGHT, _MARGIN = 720, 400, 48
_COLOURS = ("#5d6470", "#1d6fb8")


def _measure(path: str, target: TargetSpec, steps: int, seeds: int, picture: str | None, *, as_json: bool) -> int:
    from advisor.experiment.measuring.convergence import converge
    from advisor.experiment.request import Request
    from advisor.recipe.catalog import load_catalog
    from advisor.runner.trials import Runner

    Runner.prepare()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found = converge(Runner(), Request(target), path, load_catalog(), say, steps=steps, seeds=seeds)
    if picture:
        write_atomically(picture, _drawn(found))
    if as_json:
        from advisor.export.json_report import strict_json

        print(strict_json(_as_json(found), indent=2))
    else:
        print(_as_text(path, found, steps))
    return ExitCode.OK if found.verdict.is_fine else ExitCode.NOT_WORTH_IT


def _as_text(path: str, found: Convergence, steps: int) -> str:
    """A row for each window of steps, and the verdict."""
    from advisor.experiment.measuring.convergence import band

    rows = [f"{'steps':>12}{'without: mean':>16}{'(range)':>22}{'with: mean':>16}{'(range)':>22}"]
    plain, tuned = band(found.plain), band(found.tuned)
    for number, (old, new) in enumerate(zip(plain, tuned, strict=True), start=1):
        until = round(steps * number / len(plain))
        told = "".join(f"{mean:16.5g}{f'({low:.5g} to {high:.5g})':>22}" for low, mean, high in (old, new))
        rows.append(f"{f'to {until}':>12}{told}")
    seeds = f"{len(found.plain)} seeds" if len(found.plain) > 1 else "one seed, which cannot show chance"
    ends = f"the last losses differ by {found.difference:+.3g} on average, and chance explains {found.chance:.3g}"
    return "\n".join([*rows, f"{path}: {found.verdict}; {ends} ({seeds})"])


def _as_json(found: Convergence) -> dict[str, Any]:
    return {
        "verdict": found.verdict.value,
        "difference": found.difference,
        "chance": found.chance,
        "learnt": found.learnt,
        "plain": [curve.losses for curve in found.plain],
        "tuned": [curve.losses for curve in found.tuned],
        "session_s": found.seconds,
    }


def _drawn(found: Convergence) -> str:
    """An SVG picture: for each side the mean loss of each window, in the band of its seeds."""
    from advisor.experiment.measuring.convergence import band

    bands = [band(found.plain), band(found.tuned)]
    numbers = [number for side in bands for window in side for number in window]
    lowest, highest = min(numbers), max(numbers)

    def place(window: int, loss: float) -> str:
        across = _MARGIN + (_WIDTH - 2 * _MARGIN) * window / max(1, len(bands[0]) - 1)
        up = (loss - lowest) / ((highest - lowest) or 1.0)
        return f"{across:.1f},{_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * up:.1f}"

    parts = [
        f'<text x="4" y="{_MARGIN}">{highest:.4g}</text>',
        f'<text x="4" y="{_HEIGHT - _MARGIN}">{lowest:.4g}</text>',
        f'<text x="{_MARGIN}" y="{_HEIGHT - 12}">loss over {len(found.plain[0].losses)} steps</text>',
    ]
    for name, side, colour in zip(("without", "with the settings"), bands, _COLOURS, strict=True):
        there = [place(window, high) for window, (_, _, high) in enumerate(side)]
        back = [place(window, low) for window, (low, _, _) in reversed(list(enumerate(side)))]
        means = " ".join(place(window, mean) for window, (_, mean, _) in enumerate(side))
        parts.append(f'<polygon points="{" ".join([*there, *back])}" fill="{colour}" opacity="0.2"/>')
        parts.append(f'<polyline points="{means}" fill="none" stroke="{colour}" stroke-width="2"/>')
        line = 20 + 16 * (colour == _COLOURS[1])
        parts.append(f'<text x="{_WIDTH - 200}" y="{line}" fill="{colour}">{name}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>', *parts, "</svg>\n"])


def run(arguments: Sequence[str]) -> int:
    """Train with the settings and without them; the exit code says whether they learn as well. Raises AdvisorError."""
    own, targets = split_arguments(arguments)
    parser = Parser(
        "perf-advisor converge",
        "Train with exported settings and without them, from the same seeds, and compare the loss curves. The exit\n"
        "code is 4 when the settings learn worse, or diverge.",
        usage="perf-advisor converge SETTINGS TARGET [options] [-- ARGUMENTS of the target]",
    )
    parser.add_argument("settings", metavar="SETTINGS", help="the file that --export wrote, as in tuned.yaml")
    parser.add_argument("target", metavar="TARGET", help="what it is for, as in mymodel:build")
    parser.add("--steps", "--seeds", *INPUTS, "--config")
    parser.add("--report", type=str, help="a picture of the curves, .svg")
    parser.add("--force", help="train with another target's settings, too")
    parser.add_argument("--json", action="store_true", help="the curves as JSON")
    options = parser.parse(own)
    from advisor.recipe.settings import Settings

    if not Settings.from_file(options.settings):
        raise UsageError(f"{options.settings} has no settings.", "Name a file that --export wrote with some in it.")
    if options.report and not options.report.endswith(".svg"):
        raise UsageError(f"{options.report} is no picture.", "Give --report a file that ends in .svg.")
    target = target_of(options.target, targets, options)
    if target.mode is Mode.INFER:
        raise UsageError("only a training has a loss curve.", "Leave --mode infer out.")
    if not options.force:
        check_target_of(options.settings, target, "Name that target, or add --force to train this one with them.")
    check_target(target.target, target.directory)
    return _measure(options.settings, target, options.steps, options.seeds, options.report, as_json=options.json)
