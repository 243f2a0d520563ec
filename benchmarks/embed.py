"""Embed 1,000 texts of 5 to 200 tokens with MiniLM, beside sentence-transformers' defaults."""

import random
from pydoc_data.topics import topics

import numpy as np
import torch

from benchmarks.measure import gflops, interleaved, matrix_products, ratio, save
from unmask.checkpoint.fetch import get
from unmask.infer.model import Model

COUNT, SHORTEST, LONGEST, THREADS = 1000, 5, 200, 2


def texts_of_known_length(model: Model, count: int) -> list[str]:
    """Cut stretches of 5 to 200 tokens, uniform in length, from Python's documentation; shuffle."""
    prose = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    (pieces,) = model.tokenizer.tokenize([prose])
    rng = random.Random(0)
    texts = []
    for i in range(count):
        inside = SHORTEST - 2 + i * (LONGEST - SHORTEST) // (count - 1)  # -2: [CLS] and [SEP]
        at = rng.randrange(len(pieces.ids) - inside)
        texts.append(prose[pieces.offsets[at][0] : pieces.offsets[at + inside - 1][1]])
    rng.shuffle(texts)
    return texts


def main(rounds: int = 5) -> None:
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(THREADS)
    folder = get("minilm")
    ours, theirs = Model.load(folder), SentenceTransformer(str(folder), device="cpu")
    texts = texts_of_known_length(ours, COUNT)
    tokens = sum(len(ids) + 2 for ids in ours.tokenizer.ids(texts))
    vectors: dict[str, np.ndarray] = {}

    def embed_ours() -> None:
        vectors["unmask"] = ours.embed(texts)

    def embed_theirs() -> None:
        vectors["theirs"] = theirs.encode(texts, normalize_embeddings=True)

    seconds = interleaved(
        {
            "unmask": embed_ours,
            "sentence-transformers": embed_theirs,
            "matrix products": matrix_products,
        },
        rounds,
    )
    peak = gflops(seconds.pop("matrix products"))
    speedup = ratio(seconds, "unmask", "sentence-transformers")
    difference = float(np.abs(vectors["unmask"] - vectors["theirs"]).max())
    print(
        f"\n{COUNT} texts, {tokens:,} tokens, {THREADS} threads; "
        f"an fp32 matrix product reaches {peak:.0f} GFLOP/s\n"
    )
    print("| | seconds (median) | tokens a second | ratio |")
    print("|---|---|---|---|")
    for name, spent in seconds.items():
        middle = float(np.median(spent))
        times = speedup["median"] if name == "unmask" else 1.0
        print(f"| {name} | {middle:.2f} | {tokens / middle:,.0f} | {times:.2f}x |")
    print(f"\nlargest difference between the vectors: {difference:.1e}")
    save(
        "embed",
        {
            "texts": COUNT,
            "tokens": tokens,
            "threads": THREADS,
            "matrix_product_gflops": peak,
            "seconds": seconds,
            "speedup": speedup,
            "largest_difference": difference,
        },
    )
