"""The story of the README's first command: real weights, what they know, what they look at, speed.

It uses only what is in the box and one fetched model, and prints what it measured.
"""

import time

import numpy as np
from numpy.typing import NDArray

from unmask.checkpoint.fetch import get
from unmask.model.network import count_parameters
from unmask.use.model import AttentionMaps, Model

SENTENCES = (
    "A man is eating a piece of bread.",
    "Someone is having lunch.",
    "The girl is playing the violin.",
    "A child makes music.",
    "The stock market fell sharply today.",
    "Share prices dropped.",
)
STORY = (
    "The river had risen in the night. By morning the bridge was gone, and with it the only road "
    "to the village. Nobody had slept. The miller counted his sacks again and again, as if there "
    "might be more of them, and his daughter watched the brown water carry whole trees to the sea."
)
SHADES = " .:-=+*#%@"  # light to dark, as strong as a similarity is
TIMED_TEXTS = 256


def tell() -> None:
    """Run the demonstration."""
    begun = time.perf_counter()
    get("minilm")
    loading = time.perf_counter()
    model = Model.load("minilm")
    loaded = time.perf_counter() - loading
    config = model.network.config
    print(
        f"\nall-MiniLM-L6-v2: a BERT of {config.layers} layers, width {config.width}, "
        f"{config.heads} heads, {count_parameters(model.network):,} parameters"
    )
    print("\n1. What it knows: how close two sentences are (cosine of their vectors)\n")
    show_similarities(SENTENCES, model.embed(SENTENCES))
    print("\n2. What it looks at: where attention goes, by layer\n")
    show_attention(model.attention(STORY))
    print("\n3. How fast it is on this machine\n")
    show_speed(model, loaded)
    print(f"\ndone in {time.perf_counter() - begun:.1f} s. To go on:\n")
    print('  unmask tokenize minilm "unaffable, she said"')
    print("  unmask embed minilm YOUR.txt --out vectors.npy")
    print("  unmask vocab learn YOUR.txt --size 8000 --out my-vocabulary")


def show_similarities(texts: tuple[str, ...], vectors: NDArray[np.float32]) -> None:
    """A matrix of numbers with a shade each, darker where two texts are closer."""
    scores = vectors @ vectors.T
    width = max(map(len, texts))
    print(" " * (width + 5) + "".join(f"{i:>9}" for i in range(1, len(texts) + 1)))
    for i, (text, row) in enumerate(zip(texts, scores, strict=True), start=1):
        cells = "".join(f"{score:>6.2f} {shade(score) * 2}" for score in row)
        print(f"  {i}  {text:<{width}}{cells}")


def shade(score: float) -> str:
    """A character as dark as a score between 0 and 1 is high.

    >>> shade(-0.3), shade(0.5), shade(1.0)
    (' ', '=', '@')
    """
    return SHADES[round(max(0.0, min(float(score), 1.0)) * (len(SHADES) - 1))]


def attention_shares(attention: AttentionMaps) -> NDArray[np.float64]:
    """Per layer, the mean share of attention on: separators, itself, neighbours, the rest.

    -> [layers, 4]
    """
    weights = attention.weights.mean(axis=1).astype(np.float64)  # [layers, S, S]
    places = np.arange(len(attention.tokens))
    special = np.isin(attention.tokens, ["[CLS]", "[SEP]"])[None, :]
    distance = np.abs(places[:, None] - places[None, :])
    kinds = (
        special & (distance >= 0),
        ~special & (distance == 0),
        ~special & (distance == 1),
        ~special & (distance > 1),
    )
    return np.stack([(weights * kind).sum(-1).mean(-1) for kind in kinds], axis=-1)


def show_attention(attention: AttentionMaps) -> None:
    """Where the attention of each layer goes, and the head that looks most at one kind of place."""
    shares = attention_shares(attention)
    names = ("[CLS] and [SEP]", "itself", "its neighbours", "farther away")
    print("  layer" + "".join(f"{name:>18}" for name in names))
    for number, row in enumerate(shares, start=1):
        print(f"  {number:>5}" + "".join(f"{share:>18.0%}" for share in row))
    before = np.stack(
        [np.diagonal(heads, -1, axis1=-2, axis2=-1).mean(-1) for heads in attention.weights]
    )  # [layers, H]
    layer, head = divmod(int(before.argmax()), before.shape[1])
    print(
        f"\n  Head {head + 1} of layer {layer + 1} looks at the previous token with "
        f"{before[layer, head]:.0%} of its attention.\n"
        "  (Where a head looks is not yet why the model answers as it does.)"
    )


def show_speed(model: Model, loaded: float) -> None:
    """Loading, one sentence, and many, timed here and now."""
    texts = [" ".join(STORY.split()[: 5 + i % 60]) for i in range(TIMED_TEXTS)]
    model.embed(texts[:16])  # the first call pays for what later ones share
    single = []
    for text in texts[:20]:
        begun = time.perf_counter()
        model.embed([text])
        single.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    model.embed(texts)
    many = time.perf_counter() - begun
    tokens = sum(map(len, model.tokenizer.ids(texts)))
    print(f"  loading, digests checked    {loaded:>8.2f} s")
    print(f"  one sentence (median)       {1000 * float(np.median(single)):>8.1f} ms")
    print(f"  {TIMED_TEXTS} texts                   {TIMED_TEXTS / many:>8,.0f} texts a second")
    print(f"                              {tokens / many:>8,.0f} tokens a second")
