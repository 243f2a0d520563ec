"""Tagged files: three schemes, columns or objects, the same entities; characters that count."""

import json

import pytest
from seqeval.metrics.sequence_labeling import get_entities

from unmask.data.labelled.columns import Columns
from unmask.data.labelled.conll import entities_of_tags, read_sentences, scheme_of
from unmask.data.read.lines import REFUSE
from unmask.system.errors import DataError
from unmask.tasks.ner import Ner, NerSettings

IOB2 = "John B-PER\nSmith I-PER\nmet O\nAnn B-PER\nLee B-PER\nin O\nParis B-LOC\n\nIt O\n"
IOB1 = "John I-PER\nSmith I-PER\nmet O\nAnn I-PER\nLee B-PER\nin O\nParis I-LOC\n\nIt O\n"
BIOES = "John B-PER\nSmith E-PER\nmet O\nAnn S-PER\nLee S-PER\nin O\nParis S-LOC\n\nIt O\n"
BILOU = "John B-PER\nSmith L-PER\nmet O\nAnn U-PER\nLee U-PER\nin O\nParis U-LOC\n\nIt O\n"
NAMED = [("John Smith", "PER"), ("Ann", "PER"), ("Lee", "PER"), ("Paris", "LOC")]


def named(sentence):
    return [(sentence.text[e.start : e.end], e.label) for e in sentence.entities]


@pytest.mark.parametrize(
    ("text", "scheme"), [(IOB2, "IOB2"), (IOB1, "IOB1"), (BIOES, "BIOES"), (BILOU, "BIOES")]
)
def test_every_scheme_names_the_same(tmp_path, text, scheme):
    path = tmp_path / "a.conll"
    path.write_text(text)
    assert scheme in scheme_of(path)
    first, second = read_sentences(path)
    assert named(first) == NAMED
    assert named(second) == []
    assert second.where.endswith("a.conll:9")


def test_fields_may_stand_in_columns_of_other_names(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        {"body": "Ann met", "marks": [[0, 3, "X"]], "text": "not this"},
        {"words": ["Ann", "met"], "marked": ["B-X", "O"]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = {"text": "body", "entities": "marks", "tokens": "words", "tags": "marked"}
    spanned, tagged = read_sentences(path, REFUSE, Columns.from_fields(names))
    assert named(spanned) == named(tagged) == [("Ann", "X")]


def test_a_file_of_words_and_tags_has_no_named_columns(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(IOB2)
    with pytest.raises(DataError, match=r"no column names, so there is no 'body'\. Omit --text"):
        list(read_sentences(path, REFUSE, Columns(text="body")))


def test_character_spans_and_lists_of_tags_are_read_too(tmp_path):
    text = "John Smith met Ann, in Paris."
    spans = [[text.index(word), text.index(word) + len(word), "X"] for word in ("Ann", "Paris")]
    lines = [
        {"text": text, "entities": spans},
        {"text": text, "entities": [dict(zip(("start", "end", "label"), spans[0], strict=True))]},
        {"tokens": ["Ann", "met", "Lee"], "tags": ["B-X", "O", "B-X"]},
        {"text": text},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    spanned, one, tagged, unknown = read_sentences(path)
    assert named(spanned) == [("Ann", "X"), ("Paris", "X")]
    assert named(one) == [("Ann", "X")]
    assert named(tagged) == [("Ann", "X"), ("Lee", "X")]
    assert unknown.entities is None


def test_lists_of_tags_may_be_lenient_or_missing(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"tokens": ["Ann", "met"], "tags": ["I-X", "O"]}\n{"tokens": ["Ann"]}\n')
    tagged, bare = read_sentences(path, lenient=True)
    assert named(tagged) == [("Ann", "X")]
    assert bare.entities is None


def test_documents_begin_where_conll_says_so(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("-DOCSTART- O\n\na O\n\nb O\n\n-DOCSTART- O\n\nc O\n")
    assert [sentence.document for sentence in read_sentences(path)] == [1, 1, 2]


def test_conll_2003_is_read_as_seqeval_reads_it(shared_data):
    path = shared_data / "conll2003" / "eng.testa"
    sentences = list(read_sentences(path))
    assert len(sentences) == 3250
    blocks = [block.splitlines() for block in path.read_text().split("\n\n")]
    tags = [
        [line.split()[-1] for line in block if line.strip()]
        for block in blocks
        if block and not block[0].startswith("-DOCSTART-") and any(line.strip() for line in block)
    ]
    theirs = sum(len(get_entities(sequence)) for sequence in tags)
    assert sum(len(sentence.entities) for sentence in sentences) == theirs == 5942


def test_tags_of_a_sentence_spell_its_entities(shared_data):
    sentences = list(read_sentences(shared_data / "conll2003" / "eng.testa"))[:300]
    task = Ner.learn(NerSettings(), sentences)
    for sentence in sentences:
        tags = [task.tags[i] for i in task._truth(sentence)]
        found = [
            (sentence.text[sentence.words[a][0] : sentence.words[b - 1][1]], label)
            for a, b, label in entities_of_tags(tags)
        ]
        assert found == named(sentence)


def test_a_digit_that_counts_characters_is_left_out(shared_data):
    path = shared_data / "chinese" / "weibo-ner" / "dev.conll"
    assert "the number after each word removed" in scheme_of(path)
    first = next(iter(read_sentences(path)))
    assert not any(character.isdigit() for character in first.text)
