"""Word alignment -> SVG: source words across, target words down, darker for more attention."""

from html import escape

from unmask.infer.translate import WordAlignment

CELL, LETTER = 26, 7.2  # pixels: side of a cell, average width of a letter
EDGE = 12


def alignment_svg(alignment: WordAlignment) -> str:
    """Draw an alignment matrix as SVG; each cell has its weight as a tooltip."""
    left = round(max((len(word) for word in alignment.target), default=0) * LETTER) + 2 * EDGE
    # Source words are turned by 48 degrees; they rise by the sine of that, about 0.75.
    slant = max((len(word) for word in alignment.source), default=0) * LETTER * 0.75
    top = round(slant) + 2 * EDGE
    width = left + CELL * len(alignment.source) + round(slant) + EDGE
    height = top + CELL * len(alignment.target) + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for column, word in enumerate(alignment.source):
        x, y = left + CELL * column + CELL // 2, top - 8
        parts.append(f'<text transform="translate({x},{y}) rotate(-48)">{escape(word)}</text>')
    for row, target_word in enumerate(alignment.target):
        y = top + CELL * row
        label = escape(target_word)
        parts.append(f'<text x="{left - 8}" y="{y + 18}" text-anchor="end">{label}</text>')
        shares: list[float] = alignment.weights[row].tolist()
        for column, (source_word, share) in enumerate(zip(alignment.source, shares, strict=True)):
            tooltip = f"{label} / {escape(source_word)}: {share:.3f}"
            parts.append(
                f'<rect x="{left + CELL * column}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" '
                f'fill="rgb(37,99,235)" fill-opacity="{share:.3f}" stroke="#ddd">'
                f"<title>{tooltip}</title></rect>"
            )
    return "\n".join([*parts, "</svg>\n"])
