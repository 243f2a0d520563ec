"""What `unmask check` says of files that are empty, or in which a text stands twice."""

import pytest

from unmask.tasks.check import examine

FILES = {
    "classify": ("text,label\nyes,good\nno,bad\n", "text,label\n"),
    "ner": ("John B-PER\nruns O\n", ""),
    "qa": (
        '{"question": "who?", "context": "Ada", "answers": [{"text": "Ada", "answer_start": 0}]}\n',
        "",
    ),
}
ENDINGS = {"classify": ".csv", "ner": ".txt", "qa": ".jsonl"}


@pytest.mark.parametrize("task", FILES)
def test_training_data_with_nothing_in_it_is_a_fault(task, tmp_path):
    path, train = (tmp_path / f"{name}{ENDINGS[task]}" for name in ("dev", "train"))
    for place, text in zip((path, train), FILES[task], strict=True):
        place.write_text(text)
    (fault,) = examine(path, task=task, train=train).faults
    assert fault.startswith(f"{train}: no examples found")


def test_the_order_of_several_labels_makes_no_other_answer(tmp_path):
    path = tmp_path / "data.jsonl"
    labels = ('["a", "b"]', '["b", "a"]', '["b"]')
    path.write_text("".join(f'{{"text": "the same", "label": {own}}}\n' for own in labels))
    found = examine(path, task="classify", settings={"multi_label": True})
    torn = [line for line in found.warnings if "a different label" in line]
    assert torn == [
        f"{path}:3: the same text as {path}:1, with a different label: ['a', 'b'] there, ['b'] here"
    ]
