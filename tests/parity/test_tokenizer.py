"""Ids and offsets equal those of transformers' BERT tokenizer; the plain one equals them too.

Where the plain tokenizer follows Unicode as Python knows it and the compiled engine an older
table, they differ; `golden/unicode_differences.txt` lists those characters, each with its reason.
"""

import gzip
import json
import random
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.conftest import DATA
from unmask.text.tokenizer import Casing, TokenizedText, Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.text.wordpiece import clean, is_chinese, is_punctuation, normalize, tokenize

transformers = pytest.importorskip("transformers")

KINDS = {"uncased": True, "cased": False, "chinese": True}  # name: lower-cased?
GOLDEN = Path(__file__).parents[1] / "golden" / "unicode_differences.txt"
POOLS = (  # blocks that disagree with naive code: accents, marks, spaces, CJK, emoji, bidi, ...
    (0x20, 0x7F),
    (0xA0, 0x250),
    (0x300, 0x370),
    (0x370, 0x590),
    (0x590, 0x700),
    (0x900, 0xD80),
    (0xE00, 0xE80),
    (0x1100, 0x1200),
    (0x1E00, 0x2070),
    (0x2070, 0x2BFF),
    (0x3000, 0x3200),
    (0x4E00, 0x4F00),
    (0xAC00, 0xAD00),
    (0xE000, 0xE010),
    (0xF900, 0xFB00),
    (0xFE00, 0x10000),
    (0x1F300, 0x1FAFF),
    (0x20000, 0x20100),
)


def random_strings(count, seed=0, pools=POOLS):
    """Short strings from one to three blocks each, with spaces, and sometimes anything at all."""
    rng = random.Random(seed)
    for _ in range(count):
        chosen = rng.choices(pools, k=rng.randint(1, 3))
        if rng.random() < 0.1:
            chosen.append((0, 0x110000))
        codes = (rng.randrange(*rng.choice(chosen)) for _ in range(rng.randint(1, 24)))
        text = "".join(" " if rng.random() < 0.15 else chr(code) for code in codes)
        yield "".join(c for c in text if not 0xD800 <= ord(c) < 0xE000)


@pytest.fixture(scope="session", params=KINDS)
def both(request):
    """Our tokenizer, theirs, and whether they lower-case."""
    lower = KINDS[request.param]
    path = DATA / "vocab" / f"bert-base-{request.param}-vocab.txt"
    if not path.exists() and request.param == "uncased":  # the fetched model has the same
        path = request.getfixturevalue("minilm") / "vocab.txt"
    if not path.exists():
        pytest.skip(f"the {request.param} vocabulary is not beside this checkout (../shared/data)")
    vocabulary = Vocabulary.read(path)
    theirs = transformers.BertTokenizer(vocab=vocabulary.ids, do_lower_case=lower)
    return Tokenizer(vocabulary, Casing(lowercase=lower)), theirs, lower


def assert_equal(ours: Tokenizer, theirs, texts) -> None:
    answer = theirs(texts, return_offsets_mapping=True)
    encoded = list(ours.encode_many([text] for text in texts))
    assert [e.ids for e in encoded] == answer["input_ids"]
    assert [e.offsets for e in encoded] == answer["offset_mapping"]


def assert_plain_equal(ours: Tokenizer, text: str, pieces: TokenizedText, lower: bool) -> None:
    plain = tokenize(text, ours.vocabulary, lowercase=lower)
    assert [ours.vocabulary.ids[t.text] for t in plain] == pieces.ids, ascii(text)[:2000]
    assert [(t.start, t.end) for t in plain] == pieces.offsets, ascii(text)[:2000]


def test_random_unicode_gives_the_same_ids_and_offsets(both):
    ours, theirs, _ = both
    assert_equal(ours, theirs, list(random_strings(10_000, seed=1)))


@pytest.mark.parametrize("file", ["enwiki_00", "zhwiki_00", "books"])
def test_real_text_gives_the_same_ids_and_offsets(both, shared_data, file):
    ours, theirs, _ = both
    with gzip.open(shared_data / "corpus" / f"{file}.jsonl.gz", "rt") as lines:
        texts = [
            json.loads(line)["text"][:5000] for line, _ in zip(lines, range(100), strict=False)
        ]
    assert_equal(ours, theirs, texts)


@pytest.mark.parametrize("strategy", ["longest", "second"])
def test_pairs_are_cut_like_theirs(both, strategy):
    ours, theirs, _ = both
    rng = random.Random(5)
    name = {"longest": "longest_first", "second": "only_second"}[strategy]
    for _ in range(300):
        first, second = (
            " ".join("abc de!"[: rng.randint(1, 7)] for _ in range(rng.randint(1, 20)))
            for _ in range(2)
        )
        least = len(ours.ids([first])[0]) + 4 if strategy == "second" else 3
        limit = rng.randint(least, least + 40)
        encoded = ours.encode(first, second, limit=limit, cut=strategy)
        answer = theirs(
            first, second, truncation=name, max_length=limit, return_offsets_mapping=True
        )
        assert encoded.ids == answer["input_ids"]
        assert encoded.segments == answer["token_type_ids"]
        assert encoded.offsets == answer["offset_mapping"]


def test_windows_are_theirs(both):
    ours, theirs, _ = both
    rng = random.Random(6)
    for _ in range(100):
        question, text = "what is it ?", " ".join("abcde"[: rng.randint(1, 5)] for _ in range(60))
        limit = rng.randint(12, 90)
        stride = rng.randint(0, limit - 9)
        windows = ours.windows(question, text, limit=limit, stride=stride)
        answer = theirs(
            question,
            text,
            truncation="only_second",
            max_length=limit,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        assert [w.ids for w in windows] == answer["input_ids"]
        assert [w.offsets for w in windows] == answer["offset_mapping"]


def test_decoding_is_theirs(both):
    ours, theirs, _ = both
    for text in ("Hello, world! It isn't so.", "unaffable 我爱你", "a [MASK] b"):
        ids = ours.encode(text).ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def listed_differences() -> dict[str, set[int]]:
    """The golden file: reason -> code points."""
    found: dict[str, set[int]] = {}
    for line in GOLDEN.read_text().splitlines():
        if line and not line.startswith("#"):
            reason, ranges = line.split(": ")
            codes = found.setdefault(reason, set())
            for part in ranges.split():
                first, _, last = part.partition("-")
                codes.update(range(int(first, 16), int(last or first, 16) + 1))
    return found


def is_unassigned(code: int) -> bool:
    return unicodedata.category(chr(code)) == "Cn"


def stays_and_moves(character: str) -> bool:
    """A mark that NFD may move behind another, and that is not stripped: 25 characters."""
    return unicodedata.combining(character) != 0 and unicodedata.category(character) != "Mn"


def comparable(text: str, listed: set[int]) -> bool:
    """Has the text none of the characters on which plain and engine are known to differ?"""
    return not any(ord(c) in listed or is_unassigned(ord(c)) or stays_and_moves(c) for c in text)


def test_offsets_differ_where_two_marks_change_places():
    """The plain one remembers where a mark came from; the engine counts on in the new order."""
    ours = Tokenizer(Vocabulary([*SPECIALS, "a", "##\u302f"]))
    text = "a\u302f\u0331"  # NFD puts the second mark first, then it is stripped
    assert [(t.start, t.end) for t in tokenize(text, ours.vocabulary, lowercase=True)] == [
        (0, 1),
        (1, 2),
    ]
    assert ours.tokenize([text])[0].offsets == [(0, 1), (2, 3)]


def test_the_plain_tokenizer_equals_the_engine_but_for_listed_characters(both):
    ours, _, lower = both
    listed = set().union(*listed_differences().values())
    texts = [text for text in random_strings(12_000, seed=2) if comparable(text, listed)]
    assert len(texts) > 6_000
    for text, pieces in zip(texts, ours.tokenize(texts), strict=True):
        assert_plain_equal(ours, text, pieces, lower)


def test_plain_and_engine_agree_on_real_text(both, shared_data):
    ours, _, lower = both
    for file in ("enwiki_01", "zhwiki_00"):
        with gzip.open(shared_data / "corpus" / f"{file}.jsonl.gz", "rt") as lines:
            texts = [json.loads(next(lines))["text"][:3000] for _ in range(40)]
        for text, pieces in zip(texts, ours.tokenize(texts), strict=True):
            assert_plain_equal(ours, text, pieces, lower)


def differences() -> dict[str, set[int]]:
    """Every assigned character on which the plain rules and the engine's differ, by rule."""
    engine = Tokenizer(Vocabulary(SPECIALS)).engine
    cased = Tokenizer(Vocabulary(SPECIALS), Casing(lowercase=False)).engine
    found: dict[str, set[int]] = {"removed": set(), "accent": set(), "chinese": set()}
    found["punctuation"] = set()
    for code in range(0x110000):
        character = chr(code)
        if 0xD800 <= code < 0xE000 or is_unassigned(code):
            continue
        theirs = cased.normalizer.normalize_str(character)
        ours = "".join(c for c, _ in clean([(character, 0)]))
        if theirs.strip() != ours.strip():
            found["removed"].add(code)
        elif theirs != ours and not character.isspace():
            found["chinese"].add(code)
        lower = engine.normalizer.normalize_str(character)
        plain = "".join(c for c, _ in normalize([(character, 0)], lowercase=True))
        if theirs == ours and lower != plain:
            found["accent"].add(code)
        if not character.isspace() and ours.strip() and theirs.strip():
            apart = len(engine.pre_tokenizer.pre_tokenize_str(f"a{character}b")) == 3
            if apart != is_punctuation(character):
                found["punctuation"].add(code)
    return found


def test_the_list_of_differences_is_exact():
    if unicodedata.unidata_version != "14.0.0":
        pytest.skip(f"the list is for Unicode 14, not {unicodedata.unidata_version}")
    assert differences() == listed_differences()


def test_chinese_of_extension_e_is_where_the_engine_has_a_wrong_bound():
    assert listed_differences()["chinese"] == set(range(0x2B820, 0x2B920))
    assert all(is_chinese(chr(code)) for code in listed_differences()["chinese"])


def every_text(shared_data: Path, chinese: bool) -> Iterator[str]:
    """Each line of each data file, or each text of a corpus."""
    for path in sorted(shared_data.rglob("*")):
        is_chinese_file = "chinese" in path.parts or path.name.startswith("zh")
        if not path.is_file() or "vocab" in path.parts or is_chinese_file != chinese:
            continue
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                yield from (json.loads(line)["text"] for line in lines)
        else:
            yield from path.read_text(encoding="utf-8").split("\n")


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_all_real_data_gives_the_same_ids_and_offsets(both, shared_data):
    ours, theirs, lower = both
    chinese = len(ours.vocabulary) == 21_128
    listed = set().union(*listed_differences().values())
    texts = every_text(shared_data, chinese)
    count = characters = plain_texts = plain_characters = 0
    while some := list(islice(texts, 500)):
        assert_equal(ours, theirs, some)
        count += len(some)
        characters += sum(map(len, some))
        for text, pieces in zip(some, ours.tokenize(some), strict=True):
            if comparable(text, listed):
                assert_plain_equal(ours, text, pieces, lower)
                plain_texts += 1
                plain_characters += len(text)
    print(f"{count:,} texts, {characters:,} characters: all equal to transformers'")
    print(f"{plain_texts:,} texts, {plain_characters:,} characters: all equal to the plain one's")
    assert characters > 5_000_000
    assert plain_characters > 0.9 * characters


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_200_000_random_strings_give_the_same_ids_and_offsets(both):
    ours, theirs, lower = both
    listed = set().union(*listed_differences().values())
    equal_to_plain = 0
    for seed in range(20):
        texts = list(random_strings(10_000, seed=100 + seed))
        assert_equal(ours, theirs, texts)
        for text, pieces in zip(texts, ours.tokenize(texts), strict=True):
            if not comparable(text, listed):
                continue
            assert_plain_equal(ours, text, pieces, lower)
            equal_to_plain += 1
    print(
        f"200,000 equal to transformers; {equal_to_plain:,} without listed characters to the plain"
    )
    assert equal_to_plain > 100_000
