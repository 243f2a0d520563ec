"""Numbers over steps -> SVG line charts, without a plotting library.

Writing the SVG here avoids an import and an optional dependency, and needs no network to be seen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 580, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 34, 42
COLOURS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2", "#be185d", "#65a30d")
INK = 'fill="currentColor"'
PALE = f'{INK} fill-opacity="0.7"'
POINTS = 400  # of a line, at most; longer ones are averaged


@dataclass(frozen=True)
class Line:
    """One curve; a dashed one is a baseline."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    dashed: bool = False
    faint: bool = False


@dataclass(frozen=True)
class Chart:
    """Several lines over the same axes."""

    title: str
    lines: Sequence[Line]
    percent: bool = False
    across: str = "step"
    names: Sequence[str] = ()  # labels of x = 0, 1, 2, ... where x is a category
    log: bool = False  # logarithmic y axis

    def svg(self) -> str:
        """Render the chart as an <svg> element."""
        return _svg(HEIGHT, f'role="img" aria-label="{escape(self.title)}"', _contents(self))


def stacked(charts: Sequence[Chart]) -> str:
    """Render several charts below each other, as one SVG file on white."""
    height = HEIGHT * max(len(charts), 1)
    body = "".join(
        f'<g transform="translate(0 {HEIGHT * i})">{_contents(chart)}</g>'
        for i, chart in enumerate(charts)
    )
    white = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    return _svg(height, 'color="#1f2937"', white + body) + "\n"


def _svg(height: int, attributes: str, body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12" {attributes}>'
        f"{body}</svg>"
    )


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'


class _Frame:
    """The axes of a chart: data coordinates -> pixels."""

    def __init__(self, chart: Chart, lines: Sequence[Line]) -> None:
        self.log = chart.log
        xs = [x for line in lines for x in line.xs]
        ys = [y for line in lines for y in line.ys if _drawable(y, self.log)]
        # The widths of both ranges are divided by, so they must not be zero.
        self.left, self.right = min(xs), max(max(xs), min(xs) + 1e-9)
        self.ticks = _powers(min(ys), max(ys)) if self.log else _ticks(min(ys), max(ys))
        self.low, self.high = min(self.ticks[0], *ys), max(self.ticks[-1], *ys)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixels from the left and from the top of a point."""
        across = (x - self.left) / (self.right - self.left)
        low, y, high = (
            math.log10(value) if self.log else value for value in (self.low, y, self.high)
        )
        up = (y - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (
            HEIGHT - TOP - BOTTOM
        )


def _contents(chart: Chart) -> str:
    shown = [line for line in chart.lines if any(_drawable(y, chart.log) for y in line.ys)]
    if not shown:
        return _text(LEFT, TOP, f"{chart.title}: no data yet", INK)
    frame = _Frame(chart, shown)
    parts = [_text(LEFT, 18, chart.title, f'{INK} font-size="14" font-weight="600"')]
    for tick in frame.ticks:
        y = frame.at(frame.left, tick)[1]
        label = f"{100 * tick:g} %" if chart.percent else f"{tick:,g}"
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="currentColor" stroke-opacity="0.12"/>'
        )
        parts.append(_text(LEFT - 8, y + 4, label, f'{PALE} text-anchor="end"'))
    labels = dict(enumerate(chart.names)) if chart.names else _numbered(frame.left, frame.right)
    below = [(frame.at(x, frame.low)[0], HEIGHT - BOTTOM + 18, name) for x, name in labels.items()]
    for x, y, name in [*below, ((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, chart.across)]:
        parts.append(_text(x, y, name, f'{PALE} text-anchor="middle"'))
    parts += _curves(shown, frame, chart.percent)
    return "".join(parts)


def _drawable(y: float, log: bool) -> bool:
    return math.isfinite(y) and (y > 0 or not log)


def _curves(lines: Sequence[Line], frame: _Frame, percent: bool) -> list[str]:
    """Render the lines, and their names at their right ends, moved apart if they would overlap."""
    parts: list[str] = []
    labels: list[tuple[float, str, str]] = []
    for number, line in enumerate(lines):
        colour = "#6b7280" if line.dashed else COLOURS[number % len(COLOURS)]
        points = [frame.at(x, y) for x, y in _thinned(line, frame.log)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        faint = ' stroke-opacity="0.35"' if line.faint else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" '
            f'stroke-width="2"{dash}{faint}/>'
        )
        if len(points) == 1:  # a polyline of one point is invisible
            parts.append(
                f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3" fill="{colour}"/>'
            )
        last = next(y for y in reversed(line.ys) if _drawable(y, frame.log))
        labels.append((points[-1][1], f"{line.name} {_short_number(last, percent)}", colour))
    # From top to bottom: each name is at least 15 pixels below the one before.
    above = -math.inf
    for y, text, colour in sorted(labels):
        above = max(y + 4, above + 15)
        parts.append(_text(WIDTH - RIGHT + 8, above, text, f'fill="{colour}"'))
    return parts


def _thinned(line: Line, log: bool) -> list[tuple[float, float]]:
    """Reduce a line to at most POINTS points, each the mean of neighbouring ones."""
    pairs = [(x, y) for x, y in zip(line.xs, line.ys, strict=True) if _drawable(y, log)]
    size = max(1, -(-len(pairs) // POINTS))
    groups = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in groups
    ]


def _ticks(low: float, high: float) -> list[float]:
    """Choose about five round numbers that cover a range.

    >>> _ticks(0.0, 10.0)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    span = high - low
    if span <= 1e-9 * max(abs(low), abs(high)):  # a flat line needs room around it
        span = abs(high) or 1.0
    raw = span / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(
        (multiple * power for multiple in (1, 2, 5, 10) if multiple * power >= raw * 0.999),
        10 * power,
    )
    # The tiny shifts absorb rounding: 0.3 / 0.1 = 2.9999... would add a tick.
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


def _numbered(low: float, high: float) -> dict[float, str]:
    """Label the round numbers within a range."""
    return {tick: f"{tick:,g}" for tick in _ticks(low, high) if low <= tick <= high}


def _powers(low: float, high: float) -> list[float]:
    """Return the powers of ten that cover a range.

    >>> _powers(262.0, 20_000.0)
    [100.0, 1000.0, 10000.0, 100000.0]
    """
    first = math.floor(math.log10(low) + 1e-9)
    last = max(math.ceil(math.log10(high) - 1e-9), first + 1)
    return [10.0**power for power in range(first, last + 1)]


def _short_number(value: float, percent: bool) -> str:
    """Format a number for the name of a line.

    >>> _short_number(0.5, True), _short_number(16312.4, False)
    ('50.0 %', '16,312')
    >>> _short_number(6.7901, False), _short_number(0.00138, False)
    ('6.79', '0.00138')
    """
    if percent:
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
