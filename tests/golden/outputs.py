"""Ask the golden models their recorded questions, and compare the answers with the recorded ones.

`make.py` recorded the answers with these functions, and `test_golden.py` asks again. When the API
changes, adapt the functions: the recorded files stay as they are.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import unmask
from unmask.checkpoint.folder import load_folder
from unmask.infer.model import Model
from unmask.model.config import SearchSettings
from unmask.model.factory import part_of

FOLDERS = Path(__file__).parent / "folders"  # what the earlier version wrote
EXPECTED = Path(__file__).parent / "expected"  # inputs, and what that version answered
TOLERANCE = 1e-5  # relative to the largest number of a list; CPUs differ in the last bits

Json = dict[str, Any]
Ask = Callable[[Model, Json], Json]


def recorded(name: str) -> Json:
    return json.loads((EXPECTED / f"{name}.json").read_text("utf-8"))


def vectors(model: Model, texts: list[str]) -> list[list[float]]:
    """Mean-pooled vectors with their lengths."""
    return model.embed(texts, normalize=False).tolist()


def pretrained(model: Model, inputs: Json) -> Json:
    """Vectors of texts, and the likeliest tokens for each [MASK]."""
    found = [place for text in inputs["masked"] for place in model.fill(text, top=5)]
    return {
        "vectors": vectors(model, inputs["texts"]),
        "tokens": [[guess.token for guess in place] for place in found],
        "probabilities": [[guess.probability for guess in place] for place in found],
    }


def checkpointed(model: Model, inputs: Json) -> Json:
    """A checkpoint of BERT's objectives: masked tokens, and the probability of a next sentence."""
    follows = [model.next(first, second) for first, second in inputs["pairs"]]
    return {**pretrained(model, inputs), "next": follows}


def classified(model: Model, inputs: Json) -> Json:
    found = model.classify(inputs["texts"])
    return {
        "vectors": vectors(model, inputs["texts"]),
        "labels": [list(answer.labels) for answer in found],
        "probabilities": [answer.probabilities for answer in found],
    }


def regressed(model: Model, inputs: Json) -> Json:
    return {
        "vectors": vectors(model, [first for first, _ in inputs["pairs"]]),
        "scores": model.score([(first, second) for first, second in inputs["pairs"]]),
    }


def answered(model: Model, inputs: Json) -> Json:
    """The answer to each question, "" where the passage has none, and the next best ones."""
    found = [model.answer(question, context) for question, context in inputs["questions"]]
    return {
        "vectors": vectors(model, [context for _, context in inputs["questions"]]),
        "answers": [[answer.text, answer.start, answer.end] for answer in found],
        "probabilities": [answer.probability for answer in found],
        "margins of no answer": [answer.nothing for answer in found],
        "candidates": [[own.text for own in answer.candidates[:5]] for answer in found],
        "scores": [[own.score for own in answer.candidates[:5]] for answer in found],
    }


def tagged(model: Model, inputs: Json) -> Json:
    found = [model.entities(text) for text in inputs["texts"]]
    return {
        "vectors": vectors(model, inputs["texts"]),
        "tags": [list(answer.tags) for answer in found],
        "entities": [
            [[own.label, own.text, own.start, own.end] for own in answer.entities]
            for answer in found
        ],
        "probabilities": [[own.probability for own in answer.entities] for answer in found],
    }


def translated(model: Model, inputs: Json) -> Json:
    """Translations by greedy and beam search, and the mean loss per target token of each pair."""
    answer: Json = {}
    for name, settings in (("greedy", SearchSettings()), ("beam", SearchSettings(beams=4))):
        found = list(model.translator.translate(inputs["texts"], settings))
        answer[name] = [own.text for own in found]
        answer[f"{name} scores"] = [own.score for own in found]
    losses = [loss_of(model, [pair]) for pair in inputs["pairs"]]
    return {**answer, "losses": losses, "loss of all": loss_of(model, inputs["pairs"])}


def loss_of(model: Model, pairs: list[list[str]]) -> float:
    """The mean loss per target token, [SEP] included, of a source and its given translation."""
    from unmask.data.labelled.parallel import Pair
    from unmask.tasks.results import AnswerCounts

    given, tally = [Pair(source, target, "given") for source, target in pairs], AnswerCounts()
    list(model.predict(given, tally))
    return tally.mean


ASK: dict[str, Ask] = {
    "budget": pretrained,
    "classify": classified,
    "regress": regressed,
    "qa": answered,
    "ner": tagged,
    "lstm": translated,
    "gru": translated,
    "attention": translated,
    "transformer": translated,
}
SEVERAL: dict[str, Ask] = {"animal": classified, "names": tagged}  # the tasks of `multi`


def load(name: str) -> Model:
    return unmask.load(FOLDERS / name)


def load_one_of_several(name: str) -> Model:
    """The folder with the heads of all tasks, reduced to one of them."""
    folder = load_folder(FOLDERS / "multi" / "model")
    return Model(replace(folder, network=part_of(folder.network, [name])))


def differences(found: Any, expected: Any, where: str = "answer") -> list[str]:
    """List where two answers differ: numbers by more than the tolerance, anything else at all."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            return [f"{where}: {found!r:.200}, recorded {expected!r:.200}"]
        if expected and all(isinstance(value, float) for value in expected.values()):
            keys = list(expected)
            return differences([found[k] for k in keys], [expected[k] for k in keys], where)
        return [d for key in expected for d in differences(found[key], expected[key], key)]
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return [f"{where}: {found!r:.200}, recorded {expected!r:.200}"]
        if expected and all(isinstance(value, float) for value in expected):
            return _far_apart(found, expected, where)
        pairs = enumerate(zip(found, expected, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{where}[{i}]")]
    if isinstance(expected, float):
        return _far_apart([found], [expected], where)
    return [] if found == expected else [f"{where}: {found!r:.200}, recorded {expected!r:.200}"]


def _far_apart(found: list[float], expected: list[float], where: str) -> list[str]:
    most = TOLERANCE * max(map(abs, expected))
    return [
        f"{where}[{i}]: {a!r}, recorded {b!r}"
        for i, (a, b) in enumerate(zip(found, expected, strict=True))
        if not abs(a - b) <= most  # NaN is far from everything
    ]
