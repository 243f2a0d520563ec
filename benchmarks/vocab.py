"""Learn a vocabulary of 8,192 tokens: both criteria of unmask, and Hugging Face's trainer."""

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import save
from unmask.data.read.texts import read_texts
from unmask.text.count import count_words
from unmask.text.learn import LearnSettings, learn, report
from unmask.text.tokenizer import Casing, Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary

CORPUS = Path("../shared/data/corpus/enwiki_00.jsonl.gz")
SIZE = 8192


def texts() -> Iterator[str]:
    return (record.text for record in read_texts(CORPUS))


def main() -> None:
    if not CORPUS.exists():
        raise SystemExit(f"{CORPUS} is not there: this measurement needs the development data")
    casing = Casing()
    begun = time.perf_counter()
    words = count_words(texts(), casing)
    counted = time.perf_counter() - begun
    rows: dict[str, dict[str, float]] = {}
    for criterion in ("frequency", "likelihood"):
        begun = time.perf_counter()
        vocabulary = learn(
            words, LearnSettings.model_validate({"size": SIZE, "criterion": criterion})
        )
        rows[criterion] = {"seconds": time.perf_counter() - begun + counted}
        rows[criterion] |= vars(report(words, vocabulary, casing))
    rows["Hugging Face's trainer"] = _theirs(words, casing)
    print(f"\n{CORPUS.name}: {sum(words.values()):,} words, {len(words):,} distinct\n")
    print("| rule | seconds | tokens per word | unknown words |")
    print("|---|---|---|---|")
    for name, row in rows.items():
        share = f"{row['unknown_words']:.3%}"
        print(f"| {name} | {row['seconds']:.1f} | {row['tokens_per_word']:.4f} | {share} |")
    save("vocab", {"rows": rows, "counting_seconds": counted})


def _theirs(words: dict[str, int], casing: Casing) -> dict[str, float]:
    from tokenizers import models, trainers

    # The same normalizer and pre-tokenizer, so that only the learning differs.
    engine = Tokenizer(Vocabulary(SPECIALS), casing).engine
    engine.model = models.WordPiece(unk_token="[UNK]")
    trainer = trainers.WordPieceTrainer(
        vocab_size=SIZE, special_tokens=list(SPECIALS), show_progress=False, limit_alphabet=1000
    )
    begun = time.perf_counter()
    engine.train_from_iterator(texts(), trainer)
    spent = time.perf_counter() - begun
    ids = engine.get_vocab()
    vocabulary = Vocabulary(sorted(ids, key=lambda token: ids[token]))
    return {"seconds": spent, **vars(report(words, vocabulary, casing))}
