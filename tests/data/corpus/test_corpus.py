"""A corpus folder: what was put in comes out, and a folder that was touched is not read."""

import json
import random
import shutil

import numpy as np
import pytest

from tests.data.conftest import prose
from unmask.data.corpus.corpus import open_corpus
from unmask.data.corpus.layout import MANIFEST, PLAN
from unmask.data.corpus.shards import id_type
from unmask.system.errors import FolderError, UserError
from unmask.system.manifest import with_digest
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary

SEGMENTED = "我爱 你\n我 爱你 我\n\n爱你我\n"  # Chinese, segmented into words by spaces


def documents_of(corpus):
    """The ids of a corpus as lists: documents of sentences of tokens."""
    texts = []
    for first, after in zip(corpus.documents[:-1], corpus.documents[1:], strict=True):
        starts = corpus.sentences[first : after + 1]
        pairs = zip(starts[:-1], starts[1:], strict=True)
        texts.append([corpus.tokens(start, end - start).tolist() for start, end in pairs])
    return texts


@pytest.fixture
def folder(prepared):
    """A finished corpus of several shards, with the bits of its words."""
    return prepared({"a.txt": prose(200)}, words="spaces")


def flipped(raw):
    """The bytes with one bit of the middle changed."""
    at = len(raw) // 2
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


DAMAGE = {
    "altered": lambda path: path.write_bytes(flipped(path.read_bytes())),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "lengthened": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "removed": lambda path: path.unlink(),
}
SHARD_FILES = [
    f"shard-{number:05d}.{ending}" for number in (0, 2) for ending in "bin idx wrd".split()
]


def test_documents_sentences_and_tokens_come_out_as_the_tokenizer_made_them(prepared, tokenizer):
    text = prose(300)
    corpus = open_corpus(prepared({"a.txt": text}))
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    assert len(corpus.shards) > 3
    assert documents_of(corpus) == [tokenizer.ids(block) for block in blocks]


def test_positions_count_through_all_shards(prepared):
    corpus = open_corpus(prepared({"a.txt": prose(300)}))
    lengths = [len(shard) for shard in corpus.shards]
    assert corpus.size == sum(lengths) == corpus.manifest["statistics"]["tokens"]
    assert corpus.shard_starts == [sum(lengths[:i]) for i in range(len(lengths))]
    joined = np.concatenate(corpus.shards)
    for begin, length in zip(corpus.shard_starts, lengths, strict=True):
        assert np.array_equal(corpus.tokens(begin, length), joined[begin : begin + length])


def test_tokens_are_given_in_a_type_that_torch_takes(folder):
    assert open_corpus(folder).tokens(0, 3).dtype == np.int64


def test_a_corpus_keeps_the_tokenizer_that_made_it(folder, tokenizer):
    assert open_corpus(folder).tokenizer.digest() == tokenizer.digest()


def test_words_between_spaces_are_told_by_a_bit_for_each_token(prepared):
    corpus = open_corpus(prepared({"a.txt": SEGMENTED}, words="spaces"))
    glued = [0, 1, 0, 0, 0, 1, 0, 0, 1, 1]  # 我爱 你 | 我 爱你 我 | 爱你我
    assert corpus.size == len(glued)
    assert corpus.continuing(0, corpus.size).tolist() == [bool(bit) for bit in glued]


def test_pieces_and_marks_continue_a_word_that_no_space_ends(prepared):
    corpus = open_corpus(prepared({"a.txt": "the unwanted, cat !\n"}, words="spaces"))
    glued = [0, 0, 1, 1, 1, 0, 0]  # the un ##want ##ed , cat !
    assert corpus.continuing(0, 7).tolist() == [bool(bit) for bit in glued]


def test_the_bits_of_any_stretch_are_those_of_the_whole(folder):
    corpus = open_corpus(folder)
    draw = random.Random(0)
    for begin, shard in zip(corpus.shard_starts, corpus.shards, strict=True):
        whole = corpus.continuing(begin, len(shard))
        for _ in range(20):
            at = draw.randrange(len(shard))
            length = draw.randint(1, min(30, len(shard) - at))
            assert np.array_equal(corpus.continuing(begin + at, length), whole[at : at + length])


def test_without_given_words_there_are_no_bits(prepared):
    corpus = open_corpus(prepared({"a.txt": SEGMENTED}))
    assert corpus.continuing(0, 3) is None


def test_ids_take_two_bytes_where_they_suffice(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["ids"] == "<u2"
    size = (folder / "shard-00000.bin").stat().st_size
    assert size == 2 * manifest["shards"][0]["tokens"]
    assert (id_type(2**16), id_type(2**16 + 1)) == ("<u2", "<u4")


def test_ids_of_a_large_vocabulary_come_out_whole(prepared):
    names = [f"w{i:05d}" for i in range(70_000)]
    large = Tokenizer(Vocabulary([*SPECIALS, *names]))
    corpus = open_corpus(prepared({"a.txt": "w00000 w69999 w65530 w65531\n"}, by=large))
    assert corpus.tokens(0, 4).tolist() == [5, 70_004, 65_535, 65_536]


def test_a_shard_without_a_token_is_passed_over(prepared):
    # What BERT drops, enough to fill a shard, between two that have tokens.
    text = "\n".join(["the cat " * 200, *["\x01\x02" * 100] * 10, "a dog"])
    corpus = open_corpus(prepared({"a.txt": text}))
    assert [len(shard) for shard in corpus.shards] == [400, 0, 0, 2]
    assert corpus.tokens(400, 2).tolist() == corpus.tokenizer.ids(["a dog"])[0]


def test_opening_tells_how_far_it_is(folder):
    seen = []
    corpus = open_corpus(folder, progress=seen.append)
    assert seen == [len(shard) for shard in corpus.shards]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", SHARD_FILES)
def test_a_file_of_a_shard_that_was_touched_is_named(folder, name, damage):
    DAMAGE[damage](folder / name)
    with pytest.raises(FolderError, match=f"^{folder / name}: (was changed|is missing)") as error:
        open_corpus(folder)
    assert str(error.value).endswith(("Prepare the corpus again.", "run `unmask prepare` again."))


@pytest.mark.parametrize("damage", [name for name in DAMAGE if name != "altered"])
@pytest.mark.parametrize("ending", ["bin", "idx"])
def test_a_shard_of_another_size_is_named_even_if_its_bytes_are_not_read(folder, ending, damage):
    DAMAGE[damage](folder / f"shard-00001.{ending}")
    with pytest.raises(FolderError, match=rf"shard-00001\.{ending}: (was changed|is missing)"):
        open_corpus(folder, check=False)


def test_a_removed_shard_can_be_made_again_as_the_message_says(prepared):
    text = {"a.txt": prose(200)}
    folder = prepared(text)
    before = (folder / "shard-00001.bin").read_bytes()
    for name in ("shard-00001.bin", "shard-00001.json", MANIFEST):
        (folder / name).unlink()
    prepared(text)
    assert (folder / "shard-00001.bin").read_bytes() == before
    assert open_corpus(folder)


@pytest.mark.parametrize(
    ("old", "new"), [("cat\n", "cut\n"), ("the\na\n", "a\nthe\n"), ("mat\n", "mat\nmore\n")]
)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside tokenizer.json"])
def test_another_vocabulary_is_refused(folder, old, new, alone):
    path = folder / "tokenizer" / "vocab.txt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    if alone:
        (folder / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(FolderError, match=f"^{folder / 'tokenizer'}(/vocab.txt)?: "):
        open_corpus(folder)


def test_another_casing_is_refused(folder):
    path = folder / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace('"lowercase": true', '"lowercase": false'))
    with pytest.raises(
        FolderError, match=r"tokenizer: not the tokenizer that this corpus was prepared with"
    ):
        open_corpus(folder)


def test_a_missing_tokenizer_is_named(folder):
    shutil.rmtree(folder / "tokenizer")
    with pytest.raises(FolderError, match=f"^{folder / 'tokenizer'}: no such folder"):
        open_corpus(folder)


def test_a_corpus_that_is_not_finished_is_refused_with_how_to_finish_it(folder):
    (folder / MANIFEST).unlink()
    with pytest.raises(FolderError) as error:
        open_corpus(folder)
    assert str(error.value) == (
        f"{folder}: an unfinished corpus; need a corpus that `unmask prepare` has finished. Run "
        "it, or run it again to resume."
    )


def test_a_folder_that_is_no_corpus_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        FolderError, match="empty: not a corpus; need a corpus that `unmask prepare`"
    ):
        open_corpus(tmp_path / "empty")
    with pytest.raises(FolderError, match="nowhere: no such folder; need a corpus that"):
        open_corpus(tmp_path / "nowhere")


def test_a_corpus_of_another_format_is_refused(folder):
    path = folder / MANIFEST
    path.write_bytes(with_digest({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(FolderError, match=r"manifest\.json: format 2; this version reads 1"):
        open_corpus(folder)


def test_a_manifest_cut_off_anywhere_is_named(folder):
    path = folder / MANIFEST
    raw = path.read_bytes().rstrip()
    for length in range(0, len(raw), len(raw) // 50):
        path.write_bytes(raw[:length])
        with pytest.raises(FolderError, match=r"manifest\.json: not valid JSON"):
            open_corpus(folder)


def test_an_altered_digest_in_the_manifest_names_the_shard(folder):
    path = folder / MANIFEST
    table = json.loads(path.read_text())
    table["shards"][1]["sha256"]["bin"] = "0" * 64
    path.write_bytes(with_digest(table))
    with pytest.raises(FolderError, match=r"shard-00001\.bin: was changed"):
        open_corpus(folder)


def test_a_manifest_with_any_flipped_bit_is_refused_or_harmless(prepared):
    folder = prepared({"a.txt": "the cat\na dog\n"})
    path, draw = folder / MANIFEST, random.Random(0)
    raw = path.read_bytes()
    before = documents_of(open_corpus(folder))
    wrong = []
    for _ in range(300):
        at, bit = draw.randrange(len(raw)), draw.randrange(8)
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])
        try:
            outcome = "harmless" if documents_of(open_corpus(folder)) == before else "another"
        except UserError as error:
            outcome = "refused" if str(folder) in str(error) else str(error)
        except Exception as error:
            outcome = repr(error)
        if outcome not in ("harmless", "refused"):
            wrong.append((raw[at - 10 : at + 10], outcome))
    assert wrong == []


def test_the_plan_is_not_needed_to_read_a_finished_corpus(folder):
    (folder / PLAN).unlink()
    assert open_corpus(folder)


def test_a_corpus_is_known_by_the_digest_of_its_manifest(prepared):
    one = open_corpus(prepared({"a.txt": prose(50)}, "one"))
    same = open_corpus(prepared({"a.txt": prose(50)}, "same"))
    other = open_corpus(prepared({"a.txt": prose(50, seed=1)}, "other"))
    assert one.digest == same.digest != other.digest
