"""Text -> attention page: one self-contained HTML file, or its data as JSON for the server.

Weights are sent as float32 without rounding, so the page shows the numbers of the model. A long
text is shown in windows, because all of its weights could take a hundred megabytes.
"""

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from unmask.infer.model import Model
from unmask.inspect import attribution
from unmask.inspect.attribution import HeadStatistic
from unmask.system.errors import SettingsError

WINDOW = 128  # tokens shown at a time
MODULES = "dom.js", "maps.js", "attention.js"  # in order of their imports


def payload(
    model: Model,
    text: str,
    second: str | None = None,
    *,
    start: int = 0,
    mute: attribution.Ablated | None = None,
    truncate: bool = True,
    each_head: bool = False,
    integrated: bool = False,
    habits: Sequence[HeadStatistic] = (),
) -> dict[str, Any]:
    """Compute what the page shows. `each_head` also ablates every head on its own."""
    row = attribution.AttributedText(model, text, second, truncate=truncate)
    maps = row.maps
    count = len(maps.tokens)
    if not 0 <= start < count:
        raise SettingsError(f"start {start}: the text has {count} tokens; need 0 to {count - 1}.")
    part = slice(start, start + WINDOW)
    # Measures are computed over the whole text, then cut to the window.
    importance = {
        "rollout to [CLS]": maps.rollout()[0][part],
        "gradient × input": row.gradient_times_input()[part],
    }
    if integrated:
        importance["integrated gradients"] = row.integrated_gradients()[part]
    prediction = row.answer(mute)
    config = model.network.config
    window_weights = maps.weights[:, :, part, part].astype("<f4")
    words = maps.words
    page_data: dict[str, Any] = {
        "model": str(model.path.name),
        "tokens": maps.tokens[part],
        "segments": maps.segments[part],
        "special": maps.special[part],
        # Words count from 0 in each window.
        "words": [word - words[start] for word in words[part]],
        "layers": config.layers,
        "heads": config.heads,
        "weights": base64.b64encode(window_weights.tobytes()).decode(),
        "importance": {name: values.tolist() for name, values in importance.items()},
        "answer": {**asdict(prediction), "without": prediction.without if mute else None},
        "habits": [{**asdict(habit), "name": habit.name} for habit in habits],
    }
    if count > WINDOW:
        last = min(start + WINDOW, count)
        page_data["window"] = (
            f"Tokens {start + 1} to {last} of {count}. Weights are shares of all {count} tokens; "
            "with [CLS] and [SEP] hidden, shares of the tokens shown."
        )
    # A file cannot ask the model later, so it needs the effect of every head; the server need not.
    if each_head:
        page_data["muted"] = [
            [row.without({layer: [head]}) for head in range(config.heads)]
            for layer in range(config.layers)
        ]
    return page_data


def self_contained(payloads: Sequence[dict[str, Any]], title: str) -> str:
    """Build the HTML page of one model, or of several side by side."""
    place = files("unmask") / "page"
    script = "".join(_without_imports((place / name).read_text("utf-8")) for name in MODULES)
    # Without a "<", no text can close the script element that holds the data.
    data = json.dumps(payloads, allow_nan=False).replace("<", "\\u003c")
    page = Template((place / "look.html").read_text("utf-8"))
    return page.substitute(
        title=escape(title),
        style=(place / "style.css").read_text("utf-8"),
        data=data,
        script=script,
    )


def _without_imports(module: str) -> str:
    """Strip imports and exports, so that modules can be concatenated to one script."""
    return re.sub(r"^export ", "", re.sub(r"^import .*\n", "", module, flags=re.M), flags=re.M)
