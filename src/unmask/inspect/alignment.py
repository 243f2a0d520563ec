"""Word alignment -> SVG: source words across, target words down, darker for more attention."""

from html import escape

from unmask.infer.translate import WordAlignment

CELL, LETTER = 26, 7.2  # pixels: side of a cell, average width of a letter
EDGE = 12


def alignment_svg(looked: WordAlignment) -> str:
    """Draw an alignment matrix as SVG; each cell has its weight as a tooltip."""
    left = round(max((len(word) for word in looked.target), default=0) * LETTER) + 2 * EDGE
    # Source words are turned by 48 degrees; they rise by the sine of that, about 0.75.
    slant = max((len(word) for word in looked.source), default=0) * LETTER * 0.75
    top = round(slant) + 2 * EDGE
    width = left + CELL * len(looked.source) + round(slant) + EDGE
    height = top + CELL * len(looked.target) + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for column, word in enumerate(looked.source):
        x, y = left + CELL * column + CELL // 2, top - 8
        parts.append(f'<text transform="translate({x},{y}) rotate(-48)">{escape(word)}</text>')
    for row, word in enumerate(looked.target):
        y = top + CELL * row
        parts.append(f'<text x="{left - 8}" y="{y + 18}" text-anchor="end">{escape(word)}</text>')
        shares: list[float] = looked.weights[row].tolist()
        for column, (read, share) in enumerate(zip(looked.source, shares, strict=True)):
            about = f"{escape(word)} / {escape(read)}: {share:.3f}"
            parts.append(
                f'<rect x="{left + CELL * column}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" '
                f'fill="rgb(37,99,235)" fill-opacity="{share:.3f}" stroke="#ddd">'
                f"<title>{about}</title></rect>"
            )
    return "\n".join([*parts, "</svg>\n"])
