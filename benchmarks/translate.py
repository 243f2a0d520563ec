"""Sequence to sequence: teacher forcing in one call, the key/value cache, and CTranslate2.

    python -m benchmarks translate DATA [--only forcing cache others beams] [--model M] [--rounds 5]

DATA is a folder with train.de, train.en, val.de and val.en.

- `forcing` trains a recurrent decoder: all steps in one call, beside a Python loop over steps with
  batches in the order of the file, or of pairs of similar length.
- `cache` generates 40 tokens for each of 32 texts with a Transformer, with and without the
  key/value cache.
- `others` translates greedily, and `beams` with five beams, beside CTranslate2 with the same
  weights in fp32. Both need a --model, because a random one does not end its translations.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.exported import export_to_ctranslate2
from benchmarks.measure import RESULTS, Apart, interleaved, ratio, save
from benchmarks.teaching import TASK, Fused, Setting, Stepwise, learned_from, tokens_of
from tests.shapes import bert_heads
from unmask.checkpoint.folder import load_folder
from unmask.data.labelled.columns import Columns
from unmask.data.labelled.parallel import files_of_languages, read_pairs
from unmask.infer import engine
from unmask.model.config import ModelConfig, SearchSettings
from unmask.model.decoding.beam_search import Hypothesis, SpecialIds, search
from unmask.model.decoding.decoder import Decoder
from unmask.model.decoding.unpacking import texts_of
from unmask.model.network import Network
from unmask.model.shape import DECODER, DecoderConfig, Shape
from unmask.objectives.next_token import NetworkDecoder, PairTokens
from unmask.tasks.forward import LiveForward
from unmask.tasks.translate import TRANSLATE_TOKENS, TRANSLATE_WORKER_TOKENS
from unmask.text.tokens import Tokenizers

WORDS, ROWS = 40, 32
SENTENCES, THEIRS = 1014, 64  # sentences per round; batch size of CTranslate2


def transformer(setting: Setting) -> tuple[Network, Tokenizers]:
    """Return the given model, or one of the recipe `transformer` with random weights."""
    if setting.model is not None:
        folder = load_folder(setting.model)
        words = Tokenizers(
            folder.needed_tokenizer(), folder.network.config.max_length, folder.target
        )
        return folder.network.eval(), words
    words, _ = tokens_of(setting, 1)
    words = replace(words, max_length=128)
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=len(words.source.vocabulary),
        width=256,
        layers=3,
        heads=8,
        inner_width=512,
        max_length=128,
        positions="sinusoidal",
        norm="pre",
        activation="relu",
        norm_epsilon=1e-6,
    )
    own = DecoderConfig(vocab_size=config.vocab_size, layers=3, max_length=128, shared=True)
    return Network(Shape.of(config, bert_heads(pooler=False, decoder=own))).eval(), words


class Endless:
    """A decoder that never predicts the end, so that all sides generate equally many tokens."""

    def __init__(self, network: Network, end: int, *, cached: bool) -> None:
        self.inner = NetworkDecoder(network) if cached else Again(network)
        self.end = end

    def step(self, state: Any, words: Tensor) -> tuple[Tensor, Any]:
        """Return the scores of the next token without the end, and the new state."""
        scores, then = self.inner.step(state, words)
        scores[:, self.end] = float("-inf")
        return scores, then


class Again:
    """A decoder without a cache: it computes all tokens again at every step."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def step(self, state: Any, words: Tensor) -> tuple[Tensor, Any]:
        """Compute all tokens so far; return the scores of the next one and the new state."""
        decoder = self.network.head(DECODER, Decoder)
        said = torch.cat([state.words, words[:, None]], dim=1)
        owner = torch.zeros_like(said)
        index = torch.arange(said.shape[1]).expand_as(said)
        source_owner = state.real.long() - 1
        found = decoder(said, index, owner, state.states, source_owner, self.network.words())
        scores = self.network.token_scores(found[:, -1], DECODER)
        return scores, _SoFar(state.states, state.real, said)


@dataclass(frozen=True)
class _SoFar:
    states: Tensor
    real: Tensor
    words: Tensor

    def select(self, which: Tensor, each: int = 1) -> "_SoFar":
        return _SoFar(self.states[which], self.real[which], self.words[which])


class Greedy:
    """Greedy generation of 40 tokens for each of 32 texts, with or without the cache."""

    def __init__(self, setting: Setting, cached: bool) -> None:
        torch.set_num_threads(setting.threads)
        self.network, self.words = transformer(setting)
        _, tokens = tokens_of(setting, 2000)
        middle = [own for own in tokens if len(own.source) == 16][:ROWS]
        self.batch = TASK.batch([PairTokens(own.source) for own in middle], self.words)
        self.cached = cached
        self.about = {"said": self.say()}

    def say(self) -> list[list[int]]:
        """Return the generated token ids of each text."""
        vocabulary = (self.words.target or self.words.source).vocabulary
        speaker = Endless(self.network, vocabulary.sep, cached=self.cached)
        with torch.inference_mode():
            texts = texts_of(self.batch.owner, self.batch.index)
            states = texts.apart(self.network.encode(self.batch))
            if self.cached:
                state: Any = self.network.head(DECODER, Decoder).begin(states, texts)
            else:
                nothing = torch.zeros(len(states), 0, dtype=torch.long)
                state = _SoFar(states, texts.real(), nothing)
            begun, limits = (torch.full_like(texts.length, n) for n in (vocabulary.cls, WORDS))
            settings = SearchSettings(max_length=WORDS)
            found = search(speaker, state, begun, limits, SpecialIds(vocabulary.sep), settings)
        return [own.words for own in found]

    def __call__(self) -> None:
        """Run one round."""
        self.say()


class Ours:
    """Translation by unmask's decoder, in the batches of its inference engine."""

    def __init__(self, setting: Setting, beams: int) -> None:
        torch.set_num_threads(setting.threads)
        self.threads = setting.threads
        self.network, self.words = transformer(setting)
        self.tokens = sources(setting, self.words)
        self.task = TASK.with_search(SearchSettings(beam_size=beams))
        self.about = {"said": self.say()}

    def say(self) -> list[list[int]]:
        """Return the generated token ids of each text."""

        def answer(some: list[PairTokens]) -> Sequence[Hypothesis]:
            return self.task.run(LiveForward(self.network), some, self.words).values

        found = engine.run_in_order(
            self.tokens,
            answer,
            workers=self.threads,
            tokens=TRANSLATE_TOKENS,
            worker_tokens=TRANSLATE_WORKER_TOKENS,
        )
        return [own.words for own in found]

    def __call__(self) -> None:
        """Run one round."""
        self.say()


class CTranslate2:
    """Translation of the same texts by CTranslate2 with the same weights, one thread per worker."""

    def __init__(self, setting: Setting, beams: int) -> None:
        import ctranslate2

        network, self.words = transformer(setting)
        tokens = sources(setting, self.words)
        vocabulary = self.words.source.vocabulary.tokens
        self.texts, self.beams = [[vocabulary[int(i)] for i in own.ids] for own in tokens], beams
        folder = RESULTS / "translate-ctranslate2"
        export_to_ctranslate2(network, self.words, folder)
        self.translator = ctranslate2.Translator(
            str(folder), compute_type="float32", inter_threads=setting.threads, intra_threads=1
        )
        assert network.shape.decoder is not None
        self.most = network.shape.decoder.max_length
        self.about = {"said": self.say()}

    def say(self) -> list[list[int]]:
        """Return the generated token ids of each text."""
        ids = (self.words.target or self.words.source).vocabulary.ids
        found = self.translator.translate_batch(
            self.texts,
            beam_size=self.beams,
            max_batch_size=THEIRS,
            max_decoding_length=min(2 * max(map(len, self.texts)) + 10, self.most),
            return_scores=False,
        )
        return [[ids[word] for word in own.hypotheses[0]] for own in found]

    def __call__(self) -> None:
        """Run one round."""
        self.say()


def sources(setting: Setting, words: Tokenizers) -> list[PairTokens]:
    """Return the texts to translate, sorted by length."""
    paths = files_of_languages(setting.data, "de", "en")
    pairs = list(read_pairs(paths["dev"], Columns()))[:SENTENCES]
    found = [PairTokens(own.source) for own in learned_from(pairs, words)]
    return sorted(found, key=lambda own: len(own.ids))


def beside(
    sides: dict[str, Callable[..., Any]], arguments: Sequence[Any], rounds: int
) -> dict[str, Any]:
    """Measure several sides in turn, each in a process of its own; the first one is unmask."""
    made = {name: Apart(side, *arguments) for name, side in sides.items()}
    seconds = interleaved(dict(made), rounds)
    mine, *theirs = sides
    about = {name: side.about for name, side in made.items()}
    for side in made.values():
        side.close()
    speedup = {other: ratio(seconds, mine, other) for other in theirs}
    for other, at in speedup.items():
        print(f"{mine}: {at['median']:.2f}x ({at['lowest']:.2f} to {at['highest']:.2f}) of {other}")
    return {"seconds": seconds, "speedup": speedup, "about": about}


def in_order(setting: Setting) -> Stepwise:
    return Stepwise(setting, sort=False)


def neighbours(setting: Setting) -> Stepwise:
    return Stepwise(setting, sort=True)


def forcing(setting: Setting, rounds: int) -> dict[str, Any]:
    sides = {
        "at once": Fused,
        "step by step": in_order,
        "step by step, neighbours in length": neighbours,
    }
    found = beside(sides, [setting], rounds)
    words = found.pop("about")["at once"]["words"]
    for name, spent in found["seconds"].items():
        print(f"{name}: {words / statistics.median(spent):,.0f} words a second")
    return {**found, "words": words}


def kept(setting: Setting) -> Greedy:
    return Greedy(setting, True)


def again(setting: Setting) -> Greedy:
    return Greedy(setting, False)


def cache(setting: Setting, rounds: int) -> dict[str, Any]:
    found = beside({"kept": kept, "computed again": again}, [setting], rounds)
    said = [own["said"] for own in found.pop("about").values()]
    print("equal translations:", said[0] == said[1])
    return {**found, "same": said[0] == said[1]}


def others(setting: Setting, rounds: int, beams: int = 1) -> dict[str, Any]:
    found = beside({"unmask": Ours, "CTranslate2": CTranslate2}, [setting, beams], rounds)
    said = [own["said"] for own in found.pop("about").values()]
    same = sum(a == b for a, b in zip(*said, strict=True))
    words = [sum(map(len, own)) for own in said]
    print(f"{same} of {len(said[0])} translations are the same; {words[0]} and {words[1]} words")
    return {**found, "same": same, "texts": len(said[0]), "words": words}


def beams(setting: Setting, rounds: int) -> dict[str, Any]:
    return others(setting, rounds, beams=5)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks translate")
    kinds = {"forcing": forcing, "cache": cache, "others": others, "beams": beams}
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="*", choices=kinds, default=list(kinds))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path)
    arguments = parser.parse_args(sys.argv[2:])
    if arguments.model is None and {"others", "beams"} & set(arguments.only):
        parser.error("others and beams need a --model that was trained")
    setting = Setting(arguments.data, arguments.threads, arguments.model)
    for name in arguments.only:
        save(f"translate-{name}", kinds[name](setting, arguments.rounds))
