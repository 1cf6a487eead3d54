"""Bars as SVG: one picture for a measurement, grouped by case; a thin line shows the smallest and the largest round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

WIDTH, LABEL, RIGHT = 760, 190, 110
BAR, GAP, GROUP_GAP, TOP = 16, 3, 12, 46
COLOURS: Final = {"Escrow": "#1f6feb", "RocketMQ sync": "#d1542b", "RocketMQ async": "#eda882", "outbox": "#6e7781"}


@dataclass(frozen=True, slots=True)
class Bar:
    system: str
    label: str
    values: Sequence[float]


def bars(title: str, unit: str, groups: Sequence[Sequence[Bar]]) -> str:
    """A picture of groups of bars, one below another."""
    most = max(max(bar.values) for group in groups for bar in group) or 1.0
    lines, y = [], TOP
    for group in groups:
        for bar in group:
            lines += _bar(bar, y, most)
            y += BAR + GAP
        y += GROUP_GAP
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15" font-weight="600" fill="#1f2328">{escape(title)}</text>',
        f'<text x="{WIDTH - 12}" y="24" text-anchor="end" fill="#59636e">{escape(unit)}</text>',
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


def _bar(bar: Bar, y: int, most: float) -> list[str]:
    room = WIDTH - LABEL - RIGHT
    middle = statistics.median(bar.values)
    low, high = (LABEL + room * end / most for end in (min(bar.values), max(bar.values)))
    width, centre = max(1.0, room * middle / most), y + BAR / 2
    return [
        f'<text x="{LABEL - 8}" y="{centre + 4:.1f}" text-anchor="end" fill="#1f2328">{escape(bar.label)}</text>',
        f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[bar.system]}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{centre:.1f}" y2="{centre:.1f}" stroke="#1f2328"/>',
        f'<text x="{max(high, LABEL + width) + 6:.1f}" y="{centre + 4:.1f}" fill="#1f2328">{shown(middle)}</text>',
    ]


def shown(value: float) -> str:
    """Three digits that count; thousands with their comma."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
