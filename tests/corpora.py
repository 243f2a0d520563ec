"""Small corpora of a made-up language, in which it is known where every token comes from."""

import random
from collections.abc import Sequence
from pathlib import Path

from unmask.data.corpus.corpus import Corpus, open_corpus
from unmask.data.corpus.prepare import PrepareSettings, prepare
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary

Documents = Sequence[Sequence[str]]  # the sentences of each


def counted(documents: Sequence[Sequence[int]]) -> list[list[str]]:
    """Sentences of these lengths in which no word comes twice: w0 w1 w2, w3 w4 and so on."""
    words = (f"w{i}" for i in range(sum(map(sum, documents))))
    return [[" ".join(next(words) for _ in range(n)) for n in lengths] for lengths in documents]


def random_lengths(
    documents: int, sentences: tuple[int, int], words: tuple[int, int], seed: int = 0
) -> list[list[int]]:
    """How many words each sentence of each document has, at random between bounds."""
    draw = random.Random(seed)
    return [
        [draw.randint(*words) for _ in range(draw.randint(*sentences))] for _ in range(documents)
    ]


def chatter(documents: int, *, words: int = 100, seed: int = 0) -> list[list[str]]:
    """Sentences of random words; some words are much more frequent than others."""
    draw = random.Random(seed)
    names = [f"w{i}" for i in range(words)]
    weights = [1 / (i + 1) for i in range(words)]
    return [
        [
            " ".join(draw.choices(names, weights, k=draw.randint(3, 8)))
            for _ in range(draw.randint(4, 9))
        ]
        for _ in range(documents)
    ]


def tokenizer_for(documents: Documents, extra: Sequence[str] = ()) -> Tokenizer:
    """A vocabulary with every word of the documents, in the order of their first occurrence."""
    words = dict.fromkeys(w for sentences in documents for s in sentences for w in s.split())
    return Tokenizer(Vocabulary(list(dict.fromkeys([*SPECIALS, *words, *extra]))))


def corpus_of(
    folder: Path, documents: Documents, tokenizer: Tokenizer | None = None, **settings
) -> Corpus:
    """Documents with a blank line between them, prepared in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join("\n".join(sentences) for sentences in documents)
    (folder / "text.txt").write_text(text + "\n", "utf-8")
    prepare(
        [str(folder / "text.txt")],
        tokenizer or tokenizer_for(documents),
        folder / "corpus",
        PrepareSettings(**{"lines": "sentences", **settings}),
        notice=lambda line: None,
    )
    return open_corpus(folder / "corpus")
