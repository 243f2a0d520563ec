"""Files with tagged tokens or entities -> sentences: text, words and entity spans.

    columns   a token per line, its tag in the last column, a blank line between sentences (CoNLL);
              tags in IOB1, IOB2 or BIOES; -DOCSTART- begins a document
    .jsonl    text and entities: [{"start": 0, "end": 4, "label": "PER"}], in characters;
              or tokens and tags, two lists

Whatever the format, a sentence is a text with the character spans of its words and entities.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from unmask.data.labelled.columns import Columns
from unmask.data.read.json_lines import list_of, read_objects, text_of
from unmask.data.read.lines import (
    IGNORE,
    REFUSE,
    ErrorPolicy,
    file_format,
    read_lines,
    require_unicode,
)
from unmask.system.errors import DataError
from unmask.text.wordpiece import clean, split

DOCUMENT = "-DOCSTART-"
OUTSIDE = "O"
INSIDE, ENDS, ALONE = "I", ("E", "L"), ("S", "U")  # BILOU is BIOES with other letters
LENIENT = ", or accept such tags as beginnings with --set task.lenient=true"
LOOKED_AT = 5000  # sentences that are inspected
CharSpan = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Entity:
    """A labelled span of a text, in characters."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text with the spans of its words and entities; None where entities are not known."""

    text: str
    words: tuple[CharSpan, ...]
    entities: tuple[Entity, ...] | None
    where: str
    document: int = 0  # sentences of one document share this number

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies the record among duplicates."""
        return (self.text,)


@dataclass(frozen=True, slots=True)
class _Line:
    where: str
    word: str
    tag: str


def sentence_of(text: str, where: str, entities: tuple[Entity, ...] | None = None) -> Sentence:
    """Build a sentence from a text, with BERT's words: split at spaces and around punctuation."""
    words = split(clean((character, i) for i, character in enumerate(text)))
    return Sentence(text, tuple((word[0][1], word[-1][1] + 1) for word in words), entities, where)


def read_sentences(
    path: str | Path,
    watcher: ErrorPolicy = REFUSE,
    columns: Columns = Columns(),
    *,
    lenient: bool = False,
) -> Iterator[Sentence]:
    """Yield the sentences of a file in order.

    `lenient` reads an I- tag that continues no entity as B-, as CoNLL's own scorer does.
    """
    if str(path) == "-" or file_format(path, None) != ".jsonl":
        columns.refuse(path, "a file of words and tags has no column names")
        return _read_columns(path, watcher, lenient)
    return _read_objects(path, watcher, columns, lenient)


def _read_columns(path: str | Path, watcher: ErrorPolicy, lenient: bool) -> Iterator[Sentence]:
    scheme, numbered = _detect_scheme(path)
    if lenient and scheme == "IOB2":
        scheme = "IOB1"  # in which an entity may begin with I- or B-
    document = 0
    for lines, begins in _sentence_lines(path, watcher):
        document += begins
        words = [line.word[:-1] if numbered else line.word for line in lines]
        try:
            entities = _entities(lines, scheme)
        except DataError as error:
            watcher.bad(error, " ".join(words))
            continue
        yield _join_words(words, entities, lines[0].where, document)


def scheme_of(path: str | Path) -> str:
    """Describe in words how a file of columns tags entities, and what else was detected."""
    scheme, numbered = _detect_scheme(path)
    return f"tags in {scheme}" + (", the number after each word removed" if numbered else "")


def _detect_scheme(path: str | Path) -> tuple[str, bool]:
    """Detect the tagging scheme, and whether every word ends in a digit for its position."""
    numbered, letters = True, set()
    first_letters: Counter[str] = Counter()  # letters where an entity begins
    for lines, _ in islice(_sentence_lines(path, IGNORE), LOOKED_AT):
        label_before = ""
        for line in lines:
            numbered = numbered and len(line.word) > 1 and line.word[-1].isdigit()
            letter, _, label = line.tag.partition("-")
            letters.add(letter)
            if label and label != label_before:
                first_letters[letter] += 1
            label_before = label
    # Only BIOES has E and S. In IOB1 most entities begin with I-, in IOB2 they all begin with B-.
    if letters & {*ENDS, *ALONE}:
        return "BIOES", numbered
    return ("IOB1" if first_letters[INSIDE] > first_letters["B"] else "IOB2"), numbered


def _sentence_lines(path: str | Path, watcher: ErrorPolicy) -> Iterator[tuple[list[_Line], bool]]:
    """Yield the lines of each sentence, and whether it begins a document."""
    lines: list[_Line] = []
    width, begins_document = 0, False
    has_bad_line = False  # a bad line drops its whole sentence
    # The blank line at the end completes the last sentence.
    for number, text in chain(read_lines(path, watcher), [(0, "")]):
        cells = text.split()
        if cells and cells[0] != DOCUMENT:
            width = width or len(cells)
            if len(cells) != width or width < 2:
                has_bad_line = True
                error = DataError(
                    f"{path}:{number}: {len(cells)} columns; need a word and its tag"
                    + (f", in {width} columns as on the lines before" if width > 1 else "")
                    + ". Fix the line; a blank line separates sentences."
                )
                watcher.bad(error, text)
                continue
            lines.append(_Line(f"{path}:{number}", cells[0], cells[-1]))
            continue
        if lines and not has_bad_line:
            yield lines, begins_document
            begins_document = False
        lines, has_bad_line = [], False
        begins_document = begins_document or bool(cells)


def _entities(lines: Sequence[_Line], scheme: str) -> list[tuple[int, int, str]]:
    """Convert tags to (first word, last word + 1, label), refusing what the scheme forbids."""
    letters = ("B", INSIDE, *ENDS, *ALONE) if scheme == "BIOES" else ("B", INSIDE)
    entities: list[tuple[int, int, str]] = []
    is_open = False  # may the last entity continue?
    for i, line in enumerate(lines):
        letter, dash, label = line.tag.partition("-")
        if line.tag != "O" and (not dash or not label or letter not in letters):
            raise DataError(
                f"{line.where}: the tag is '{line.tag:.40}'; need O or, in {scheme}, one of "
                f"{', '.join(letters)} with a dash and a label, as in B-PER."
            )
        inside = letter in (INSIDE, *ENDS)
        continues = is_open and inside and entities[-1][2] == label
        if is_open and not continues and scheme == "BIOES":
            raise DataError(
                f"{line.where}: '{line.tag}' after an unfinished {entities[-1][2]} entity; in "
                "BIOES the last word of an entity is tagged E-, and a single word S-. Fix the tags."
            )
        if inside and not continues and scheme != "IOB1":
            tag_before = lines[i - 1].tag if i else "the beginning of the sentence"
            begins, lenient = ("B- or S-", "") if scheme == "BIOES" else ("B-", LENIENT)
            raise DataError(
                f"{line.where}: '{line.tag}' after {tag_before}; in {scheme} an entity begins with "
                f"{begins}. Write B-{label}, or fix the tag before it{lenient}."
            )
        if continues:
            entities[-1] = (entities[-1][0], i + 1, label)
        elif line.tag != "O":
            entities.append((i, i + 1, label))
        is_open = letter in ("B", INSIDE)
    if is_open and scheme == "BIOES":
        raise DataError(
            f"{lines[-1].where}: the sentence ends inside a {entities[-1][2]} entity; in "
            "BIOES the last word of an entity is tagged E-. Fix the tag."
        )
    return entities


def _join_words(
    words: Sequence[str], entities: Sequence[tuple[int, int, str]], where: str, document: int = 0
) -> Sentence:
    """Join words with spaces to a text, and convert spans of words to spans of characters."""
    offset, spans = 0, []
    for word in words:
        spans.append((offset, offset + len(word)))
        offset += len(word) + 1
    named = tuple(
        Entity(spans[first][0], spans[end - 1][1], label) for first, end, label in entities
    )
    return Sentence(" ".join(words), tuple(spans), named, where, document)


def _read_objects(
    path: str | Path, watcher: ErrorPolicy, columns: Columns, lenient: bool
) -> Iterator[Sentence]:
    def read_sentence(fields: dict[str, object], where: str, text: str) -> Sentence:
        record = columns.renamed(fields)
        return (
            _sentence_with_tags(record, where, lenient)
            if "tokens" in record
            else _sentence_with_spans(record, where)
        )

    for number, sentence in enumerate(read_objects(path, watcher, read_sentence)):
        yield replace(sentence, document=number)


def _sentence_with_tags(record: dict[str, object], where: str, lenient: bool) -> Sentence:
    words = _texts(record, "tokens", where)
    empty = next((i for i, word in enumerate(words) if not word.strip()), None)
    if not words or empty is not None:
        raise DataError(
            f"{where}: token {empty or 0} is empty; need a word. Fill it in or remove it."
        )
    name = next((name for name in ("tags", "ner_tags") if name in record), None)
    if name is None:
        return replace(_join_words(words, [], where), entities=None)
    tags = _texts(record, name, where)
    if len(words) != len(tags):
        raise DataError(
            f"{where}: {len(words)} tokens and {len(tags)} tags; need one tag per token."
        )
    require_unicode(" ".join([*words, *tags]), where)
    lines = [_Line(where, word, tag) for word, tag in zip(words, tags, strict=True)]
    scheme = "IOB1" if lenient else "IOB2"  # in IOB1, an entity may begin with I- or B-
    scheme = "BIOES" if any(tag[:1] in (*ENDS, *ALONE) for tag in tags) else scheme
    return _join_words(words, _entities(lines, scheme), where)


def _texts(record: dict[str, object], name: str, where: str) -> list[str]:
    values = list_of(record, name, where)
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        raise DataError(f"{where}: '{name}' is {values!r:.60}; need a list of strings.")
    return texts


def _sentence_with_spans(record: dict[str, object], where: str) -> Sentence:
    text = text_of(record, "text", where)
    spans = next((record[key] for key in ("entities", "spans", "labels") if key in record), None)
    if spans is None:
        return sentence_of(text, where)
    if not isinstance(spans, list):
        raise DataError(f"{where}: the entities are {spans!r:.60}; need a list.")
    entities = sorted(
        (_entity(span, text, where) for span in spans), key=lambda entity: entity.start
    )
    for entity, other in zip(entities, entities[1:], strict=False):
        if other.start < entity.end:
            raise DataError(
                f"{where}: the entities '{text[entity.start : entity.end]:.40}' and "
                f"'{text[other.start : other.end]:.40}' overlap; a word has one label. "
                "Remove one of them."
            )
    sentence = sentence_of(text, where, tuple(entities))
    # Words are labelled as a whole, so an entity must begin and end with one.
    begins, ends = ({span[side] for span in sentence.words} for side in (0, 1))
    for entity in entities:
        if entity.start not in begins or entity.end not in ends:
            raise DataError(
                f"{where}: the entity from {entity.start} to {entity.end}, "
                f"'{text[entity.start : entity.end]:.40}', splits a word or includes a space; "
                "need whole words. Fix its start or end."
            )
    return sentence


def _entity(span: object, text: str, where: str) -> Entity:
    if isinstance(span, list) and len(span) == 3:
        span = dict(zip(("start", "end", "label"), span, strict=True))
    if not isinstance(span, dict):
        raise DataError(f"{where}: the entity {span!r:.60}; need start, end and label.")
    start, end, label = (span.get(name) for name in ("start", "end", "label"))
    labelled = isinstance(label, str) and bool(label.strip())
    if type(start) is not int or type(end) is not int or not labelled:
        raise DataError(
            f"{where}: the entity {span!r:.80}; need integers start and end, and a label."
        )
    if not 0 <= start < end <= len(text):
        raise DataError(
            f"{where}: an entity from {start} to {end} in a text of {len(text)} characters; need "
            f"0 <= start < end <= {len(text)}."
        )
    return Entity(start, end, str(label).strip())


def entities_of_tags(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the entities in tags: first word, last word + 1, label. I- may begin one, as in CoNLL.

    >>> list(entities_of_tags(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]))
    [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'LOC')]
    """
    start, label = 0, ""
    # The O at the end completes an entity that reaches to the last word.
    for i, tag in enumerate([*tags, OUTSIDE]):
        letter, _, tag_label = tag.partition("-")
        if label and (letter != "I" or tag_label != label):
            yield start, i, label
            label = ""
        if tag_label and not label:
            start, label = i, tag_label
