"""The demo: the story is told to its end, and its files are what it says."""

import re

import pytest

import unmask
from unmask.cli.demo_steps import gather, run_demo


@pytest.mark.slow
def test_the_fast_demo_tells_the_whole_story(tmp_path):
    lines = []
    result = run_demo(tmp_path / "demo", fast=True, say=lines.append)
    told = "\n".join(lines)
    for chapter in ("Collect text", "Learn a vocabulary", "Pre-train for", "Fine-tune: which"):
        assert chapter in told
    assert re.search(r"pre-train +\d+\.\d +loss \d\.\d\d; token frequencies alone: \d\.\d\d", told)
    assert result["model"] == str(tmp_path / "demo" / "pretrain" / "model")
    assert set(result["accuracy"]) == {"pre-trained", "from scratch"}
    model = unmask.load(result["model"])
    assert len(model.fill("Return the [MASK] of the array.")) > 0
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "With and without pre-training" in page
    assert not re.search(r"(src|href)=", page)  # nothing is loaded from anywhere


def test_modules_for_the_test_are_not_learned_from():
    seen, unseen = gather(150_000)
    assert unseen
    learned = {paragraph for module in seen for paragraph in module.paragraphs}
    held = [p for module in unseen for p in module.paragraphs]
    assert sum(p in learned for p in held) <= len(held) // 10  # a phrase may stand in two places
