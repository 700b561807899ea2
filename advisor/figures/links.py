"""The links between GPUs in words, for every page that shows the machine. Pure functions of records."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.figures.formatting import format_bytes, format_ms, format_percent, format_rate
from advisor.records import AllReduceSweep, GpuLink

# A message of this share of the best rate is in the range where bandwidth, not latency, decides. 0 to 1.
_NEAR_PEAK = 0.8


def link_rows(links: Sequence[GpuLink]) -> list[tuple[str, str]]:
    """The pairs of GPUs and what links them; pairs with the same kind of link share a row."""
    pairs: dict[str, list[str]] = {}
    for link in links:
        pairs.setdefault(link_words(link), []).append(f"{link.first}-{link.second}")
    if len(pairs) == 1 and len(links) > 1:
        return [(f"all {len(links)} pairs", next(iter(pairs)))]
    return [(", ".join(names), words) for words, names in pairs.items()]


def link_words(link: GpuLink) -> str:
    """The link of two GPUs: ``18 NVLinks 4.0, 478 GB/s each way``, or the path over PCIe."""
    if not link.nvlinks:
        return f"no NVLink, {link.path}" if link.path else "no NVLink"
    count = "1 NVLink" if link.nvlinks == 1 else f"{link.nvlinks} NVLinks"
    version = f" {link.nvlink_version}" if link.nvlink_version else ""
    rate = link.nvlinks * link.nvlink_bytes_per_s if link.nvlink_bytes_per_s else None
    return f"{count}{version}" + (f", {format_rate(rate, 'B')} each way" if rate else "")


def all_reduce_sentence(sweep: AllReduceSweep) -> str:
    """The bandwidth that all-reduce comes to, the messages that reach it, and the time of the smallest message."""
    if not sweep.times:
        return f"All-reduce was not measured: {sweep.problem}."
    rates = {time.size_bytes: sweep.bus_bytes_per_s(time) for time in sweep.times}
    best = max(rates.values())
    enough = min(size for size, rate in rates.items() if rate >= _NEAR_PEAK * best)
    first = min(sweep.times, key=lambda time: time.size_bytes)
    return (
        f"All-reduce over {sweep.ranks} ranks by {sweep.backend} reaches {format_rate(best, 'B')} (bus bandwidth); "
        f"messages of {format_bytes(enough)} and more come to {format_percent(_NEAR_PEAK)} of that, and one of "
        f"{format_bytes(first.size_bytes)} takes {format_ms(1e3 * first.seconds)}."
    )
