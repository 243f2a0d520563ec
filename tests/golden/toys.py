"""Toy texts for the golden models: who lives where, animals, and a language of seven words."""

import json
import random
from pathlib import Path
from typing import Any

NAMES = ["john", "mary smith", "anna", "peter", "otto berg"]
PLACES = ["paris", "rome", "new york", "oslo"]
ANIMALS = ["cat", "dog", "bird"]
COLOURS = ["red", "big", "old", "quiet"]
GERMAN = {"hund": "dog", "katze": "cat", "haus": "house", "baum": "tree", "rot": "red"}
GERMAN |= {"gross": "big", "alt": "old"}


def write_text(path: Path) -> None:
    """Documents of four to eight sentences, with a blank line between them."""
    draw = random.Random(0)
    documents = [[sentence(draw) for _ in range(draw.randint(4, 8))] for _ in range(48)]
    path.write_text("\n\n".join("\n".join(own) for own in documents) + "\n")


def write_pairs(folder: Path) -> None:
    """A text and its translation: word by word, in reversed order."""
    draw = random.Random(2)
    for part, count in (("train", 120), ("val", 12)):
        texts = [draw.choices(list(GERMAN), k=draw.randint(1, 5)) for _ in range(count)]
        english = [[GERMAN[word] for word in reversed(words)] for words in texts]
        for ending, lines in (("de", texts), ("en", english)):
            rows = "".join(" ".join(words) + "\n" for words in lines)
            (folder / f"{part}.{ending}").write_text(rows)


def write_tasks(folder: Path) -> dict[str, Any]:
    """The data files of each task, and what its model will be asked."""
    draw = random.Random(1)
    for part, count in (("train", 48), ("dev", 12)):
        texts = [sentence(draw) for _ in range(4 * count)]
        labelled = [(t, animal) for t in texts for animal in ANIMALS if f" {animal} " in t]
        rows = [{"text": text, "label": label} for text, label in labelled]
        write_lines(folder / f"classify.{part}.jsonl", rows[:count])
        pairs = [(draw.choice(texts), draw.choice(texts)) for _ in range(count)]
        scores = [len(set(a.split()) & set(b.split())) / 3 for a, b in pairs]
        rows = [
            {"text": a, "second": b, "label": s} for (a, b), s in zip(pairs, scores, strict=True)
        ]
        write_lines(folder / f"regress.{part}.jsonl", rows)
        write_lines(
            folder / f"qa.{part}.jsonl", [question(draw, f"{part}{i}") for i in range(count)]
        )
        (folder / f"ner.{part}.conll").write_text("\n".join(map(tagged_lines, texts[:count])))
    questions = [question(draw, str(i)) for i in range(5)]
    texts = [sentence(draw) for _ in range(6)]
    return {
        "classify": {"texts": texts},
        "regress": {"pairs": [[a, b] for a, b in zip(texts, texts[1:], strict=False)]},
        "qa": {"questions": [[own["question"], own["context"]] for own in questions]},
        "ner": {"texts": [f"{a} {b}" for a, b in zip(texts, texts[1:], strict=False)]},
    }


def question(draw: random.Random, id: str) -> dict[str, Any]:
    """Where somebody lives, in a passage of several windows; one in five does not say it."""
    people = draw.sample(NAMES, 4)
    homes = [f"{name} lives in {draw.choice(PLACES)} ." for name in people]
    others = [sentence(draw) for _ in range(3)]
    asked = people[0] if draw.random() < 0.8 else next(n for n in NAMES if n not in people)
    said = [homes[0], *draw.sample([*homes[1:], *others], 5)]
    draw.shuffle(said)
    context = " ".join(said)
    answers = []
    if asked == people[0]:
        place = homes[0].removeprefix(f"{asked} lives in ").removesuffix(" .")
        start = context.index(homes[0]) + len(f"{asked} lives in ")
        answers = [{"text": place, "answer_start": start}]
    return {"id": id, "question": f"where lives {asked} ?", "context": context, "answers": answers}


def tagged_lines(text: str) -> str:
    """A sentence in two columns, with PER and LOC."""
    tags: dict[int, str] = {}
    words = text.split()
    for label, known in (("PER", NAMES), ("LOC", PLACES)):
        for name in known:
            own = name.split()
            for at in range(len(words)):
                if words[at : at + len(own)] == own:
                    tags |= {at + i: f"{'I' if i else 'B'}-{label}" for i in range(len(own))}
    return "".join(f"{word} {tags.get(i, 'O')}\n" for i, word in enumerate(words))


def sentence(draw: random.Random) -> str:
    name, place = draw.choice(NAMES), draw.choice(PLACES)
    animal, colour = draw.choice(ANIMALS), draw.choice(COLOURS)
    return draw.choice(
        [
            f"{name} lives in {place} .",
            f"the {colour} {animal} sleeps .",
            f"{name} sees a {colour} {animal} in {place} .",
            f"a {animal} and a {draw.choice(ANIMALS)} play in the {colour} house .",
            f"who feeds the {animal} ? {name} does .",
        ]
    )


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
