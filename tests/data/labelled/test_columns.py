"""Which column is what: as asked, by the names people use, or by what stands in them."""

import pytest

from unmask.data.labelled.columns import (
    LOOKED_AT,
    Columns,
    infer_columns,
    read_samples,
    sample_columns,
)
from unmask.system.errors import DataError

GLUE = {  # file, columns, examples, the first example's answer
    "SST-2/dev.tsv": (Columns("sentence", None, "label", True), 872, "1"),
    "CoLA/dev.tsv": (Columns("4", None, "2", False), 1043, "1"),
    "MRPC/dev.tsv": (Columns("#1 String", "#2 String", "Quality", True), 408, "1"),
    "STS-B/dev.tsv": (Columns("sentence1", "sentence2", "score", True), 1500, "5.000"),
}


@pytest.mark.parametrize("name", list(GLUE))
def test_the_files_of_glue_need_no_flags(shared_data, name):
    columns, count, first = GLUE[name]
    path = shared_data / "glue" / name
    assert infer_columns(path, Columns()) == columns
    samples = list(read_samples(path, columns))
    assert len(samples) == count
    assert samples[0].label == first
    assert all(sample.text.strip() for sample in samples)


def table(tmp_path, *rows, name="a.tsv"):
    path = tmp_path / name
    path.write_text("".join(row + "\n" for row in rows))
    return path


def test_a_flag_decides_otherwise(tmp_path):
    path = table(tmp_path, "title\ttext\tlabel", "a\tlong text\tx", "b\tother text\ty")
    assert infer_columns(path, Columns()).text == "text"
    assert infer_columns(path, Columns(text="title")).text == "title"


def test_a_column_may_be_given_by_its_number(tmp_path):
    path = table(tmp_path, "x\ta long text\tyes", "y\tanother text\tno")
    assert infer_columns(path, Columns(label="3", header=False)).by_field() == {
        "text": "2",
        "label": "3",
    }


def test_a_number_means_a_column_under_a_header_too(tmp_path):
    path = table(tmp_path, "title\ttext\tlabel", "a\tlong text\tx", "b\tother text\ty")
    assert infer_columns(path, Columns(text="1")).text == "title"


def test_a_question_with_its_sentence_is_a_pair(tmp_path):
    """As in QNLI."""
    path = table(tmp_path, "index\tquestion\tsentence\tlabel", "0\twho?\tit was he\tyes")
    assert infer_columns(path, Columns()).by_field() == {
        "text": "question", "second": "sentence", "label": "label"
    }  # fmt: skip


def test_a_text_and_few_labels_are_told_apart_without_a_header(tmp_path):
    rows = [f"good\tthe film number {i} was long" for i in range(5)]
    path = table(tmp_path, *rows, "bad\tthe other film")
    assert infer_columns(path, Columns()) == Columns("2", None, "1", False)


def test_a_number_of_the_row_is_no_label(tmp_path):
    """Such as the file of a contest without its answers."""
    path = table(tmp_path, "qid\ttext", *(f"{i}\tthe film {i}" for i in range(20)))
    with pytest.raises(
        DataError, match="cannot tell which of the columns qid, text holds the label"
    ):
        infer_columns(path, Columns())
    assert infer_columns(path, Columns(), labelled=False).by_field() == {"text": "text"}


def test_numbers_that_all_differ_may_be_answers(tmp_path):
    path = table(tmp_path, "how\ttext", *(f"{i}.5\tthe film {i}" for i in range(20)))
    assert infer_columns(path, Columns()).label == "how"


def test_what_was_understood_is_said(tmp_path):
    path = table(tmp_path, "text\tlabel", "a\tx", "b\ty")
    assert (
        infer_columns(path, Columns()).describe()
        == "text is column 'text', label is column 'label'"
    )


def test_a_misspelled_column_is_answered_with_the_nearest(tmp_path):
    path = table(tmp_path, "text\tlabel", "a\tx", "b\ty")
    with pytest.raises(DataError, match=r"unknown column 'lable'; did you mean 'label'\?"):
        infer_columns(path, Columns(label="lable"))


def test_numbers_of_jsonl_are_answers_too(tmp_path):
    path = table(tmp_path, '{"text": "a", "label": 1}', '{"text": "b", "label": 0}', name="a.jsonl")
    columns = infer_columns(path, Columns())
    assert [sample.label for sample in read_samples(path, columns)] == [1, 0]


def test_columns_by_number_are_not_looked_for_in_objects(tmp_path):
    """A table without a header has numbers for names; the keys of an object have no order."""
    rows = [f"a text of {i} words\t{'ab'[i % 2]}" for i in range(9)]
    columns = infer_columns(table(tmp_path, *rows), Columns())
    assert (columns.text, columns.label, columns.header) == ("1", "2", False)
    other = table(tmp_path, '{"text": "a", "label": "b"}', name="b.jsonl")
    with pytest.raises(DataError, match=r"b\.jsonl:1: unknown column '1'.* Choose one with --text"):
        list(read_samples(other, columns))


def test_as_many_bad_rows_are_looked_at_as_good_ones(tmp_path):
    """Else a file whose first line has another width would be read to its end."""
    rows = [f"a text\t{i % 2}" for i in range(LOOKED_AT)]
    path = table(tmp_path, "a title", *rows, "at the end")
    assert sample_columns(path, Columns(header=False), lambda cells: False)[1] == {"1": ["a title"]}
