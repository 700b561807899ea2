"""Loss curves with settings and without them, for a person, as JSON and as a picture."""

from typing import Any

from advisor.proof.convergence import Convergence, band

_WIDTH, _HEIGHT, _MARGIN = 720, 400, 48
_COLOURS = ("#5d6470", "#1d6fb8")


def as_text(path: str, found: Convergence, steps: int) -> str:
    """A row for each window of steps, and the verdict."""
    rows = [f"{'steps':>12}{'without: mean':>16}{'(range)':>22}{'with: mean':>16}{'(range)':>22}"]
    plain, tuned = band(found.plain), band(found.tuned)
    for number, (old, new) in enumerate(zip(plain, tuned, strict=True), start=1):
        until = round(steps * number / len(plain))
        told = "".join(f"{mean:16.5g}{f'({low:.5g} to {high:.5g})':>22}" for low, mean, high in (old, new))
        rows.append(f"{f'to {until}':>12}{told}")
    seeds = f"{len(found.plain)} seeds" if len(found.plain) > 1 else "one seed, which cannot show chance"
    ends = f"the last losses differ by {found.difference:+.3g} on average, and chance explains {found.chance:.3g}"
    return "\n".join([*rows, f"{path}: {found.verdict}; {ends} ({seeds})"])


def as_json(found: Convergence) -> dict[str, Any]:
    """The curves and the verdict."""
    return {
        "verdict": found.verdict.value,
        "difference": found.difference,
        "chance": found.chance,
        "learnt": found.learnt,
        "plain": found.plain,
        "tuned": found.tuned,
        "session_s": found.seconds,
    }


def drawn(found: Convergence) -> str:
    """An SVG picture: for each side the mean loss of each window, in the band of its seeds."""
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
        f'<text x="{_MARGIN}" y="{_HEIGHT - 12}">loss over {len(found.plain[0])} steps</text>',
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
