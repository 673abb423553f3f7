"""Two curves side by side: as text for a terminal, and as SVG. No plotting library is needed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

MARKS = "·#"
"""How the curves are drawn in a terminal, in their order; both in one place: ‡."""
BOTH = "‡"
COLOURS = ("#b45309", "#1d6fb8")
ROWS = 10


class Curve(NamedTuple):
    """A curve and its name."""

    name: str
    points: Sequence[tuple[int, float]]
    """(step, value), in order."""


class Frame(NamedTuple):
    """The range that all curves of a plot lie in."""

    first: int
    last: int
    low: float
    high: float

    @classmethod
    def of(cls, curves: Sequence[Curve]) -> Frame:
        steps = [step for curve in curves for step, _ in curve.points]
        values = [value for curve in curves for _, value in curve.points]
        low = min(values, default=0.0)
        high = max(values, default=1.0)
        if low == high:
            low -= 0.5
            high += 0.5
        return cls(min(steps, default=0), max(steps, default=1), low, high)

    def place(self, step: int, value: float) -> tuple[float, float]:
        """Both coordinates from 0 to 1; y upwards."""
        x = (step - self.first) / max(self.last - self.first, 1)
        y = (value - self.low) / (self.high - self.low)
        return x, y


def terminal_plot(title: str, curves: Sequence[Curve], width: int = 72) -> str:
    """A plot of ROWS lines, with its range at the left and the steps below."""
    frame = Frame.of(curves)
    labels = [f"{frame.high:.3g}", f"{frame.low:.3g}"]
    margin = max(len(label) for label in labels) + 1
    columns = max(width - margin - 1, 10)
    cells = [[" "] * columns for _ in range(ROWS)]
    for mark, curve in zip(MARKS, curves, strict=False):
        for step, value in curve.points:
            x, y = frame.place(step, value)
            row = ROWS - 1 - round(y * (ROWS - 1))
            column = round(x * (columns - 1))
            taken = cells[row][column]
            cells[row][column] = mark if taken in (" ", mark) else BOTH
    legend = "   ".join(f"{mark} {curve.name}" for mark, curve in zip(MARKS, curves, strict=False))
    lines = [f"{title}   {legend}"]
    for number, line in enumerate(cells):
        label = {0: labels[0], ROWS - 1: labels[1]}.get(number, "")
        lines.append(f"{label:>{margin}}│{''.join(line).rstrip()}")
    ends = f"{frame.first}{frame.last:>{columns - len(str(frame.first))}}"
    return "\n".join([*lines, f"{'':>{margin}}└{'─' * columns}", f"{'':>{margin}} {ends}"])


def svg(panels: Sequence[tuple[str, Sequence[Curve]]], caption: str) -> str:
    """One panel per metric, side by side, with a caption above."""
    width, height, gap, top, left = 360, 200, 40, 48, 56
    total = len(panels) * (width + left) + gap
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height + top + 44}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{total}" height="{height + top + 44}" fill="white"/>',
        f'<text x="12" y="20" font-size="13">{escape(caption)}</text>',
    ]
    for number, (title, curves) in enumerate(panels):
        x0 = number * (width + left) + left
        parts += _panel(title, curves, x0, top, width, height)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    title: str, curves: Sequence[Curve], x0: int, top: int, width: int, height: int
) -> list[str]:
    """The frame, its range, the curves and their names."""
    frame = Frame.of(curves)
    bottom = top + height
    parts = [
        f'<rect x="{x0}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>',
        f'<text x="{x0}" y="{top - 6}">{escape(title)}</text>',
        f'<text x="{x0 - 4}" y="{top + 10}" text-anchor="end">{frame.high:.3g}</text>',
        f'<text x="{x0 - 4}" y="{bottom}" text-anchor="end">{frame.low:.3g}</text>',
        f'<text x="{x0}" y="{bottom + 14}">{frame.first}</text>',
        f'<text x="{x0 + width}" y="{bottom + 14}" text-anchor="end">{frame.last}</text>',
    ]
    for number, (curve, colour) in enumerate(zip(curves, COLOURS, strict=False)):
        places = [frame.place(*point) for point in curve.points]
        points = " ".join(f"{x0 + x * width:.1f},{bottom - y * height:.1f}" for x, y in places)
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>',
            f'<text x="{x0 + 50 + number * 130}" y="{bottom + 32}" fill="{colour}">'
            f"{escape(curve.name)}</text>",
        ]
    return parts
