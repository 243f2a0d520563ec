"""Preparation: every byte depends on the input alone, not on workers or interruptions."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.data.conftest import contents, prose
from unmask.data.corpus.corpus import open_corpus
from unmask.data.corpus.layout import MANIFEST, PLAN, SIDE_FILE
from unmask.data.corpus.prepare import PrepareSettings, PrepareTask, prepare
from unmask.system.disk import file_lock
from unmask.system.errors import DataError, FolderError
from unmask.text.tokenizer import Casing, Tokenizer
from unmask.text.tokenizer_files import tokenizer_files

TEXT = {"a.txt": prose(500), "b.jsonl": '{"text": "the cat sat. a dog !"}\n' * 60}
KILLS = 4

# `unmask prepare` as it is, but with shards so small that a short text has many of them.
COMMAND = """
from unmask.cli import main
from unmask.data.corpus import prepare

class SmallShards(prepare.PrepareSettings):
    shard_characters: int = 10_000

prepare.PrepareSettings = SmallShards
main()
"""


@pytest.fixture(scope="module")
def long_text(tmp_path_factory, tokenizer):
    """Half a megabyte of text, and the folder of a tokenizer, for the command line."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "long.txt").write_text(prose(20_000))
    (folder / "vocabulary").mkdir()
    for name, text in tokenizer_files(tokenizer).items():
        (folder / "vocabulary" / name).write_text(text)
    return folder


def started(folder, out, workers=2):
    """A preparation in a process group of its own."""
    command = [sys.executable, "-c", COMMAND, "prepare", folder / "long.txt", "--out", out]
    command += ["--tokenizer", folder / "vocabulary", "--workers", str(workers)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, start_new_session=True, **pipes)


def finished(process):
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said.decode()


def records(folder):
    return json.loads((folder / MANIFEST).read_text())["records"]


def test_two_workers_make_the_same_bytes_as_one(prepared):
    one = contents(prepared(TEXT, "one"))
    assert len(one) > 3 * 5
    assert contents(prepared(TEXT, "two", workers=2)) == one


def test_three_tasks_make_the_same_bytes_as_one_in_whatever_order_they_run(prepared):
    one = contents(prepared(TEXT, "one"))
    for order in itertools.permutations(range(3)):
        name = "".join(map(str, order))
        for number in order:
            folder = prepared(TEXT, name, task=PrepareTask(number=number, tasks=3))
            assert (folder / MANIFEST).exists() == (number == order[-1])
        assert contents(folder) == one


def test_a_task_makes_its_share_of_the_shards_and_no_other(prepared):
    folder = prepared(TEXT, task=PrepareTask(number=1, tasks=3))
    made = sorted(int(path.stem[-5:]) for path in folder.glob("shard-*.json"))
    assert len(made) > 2
    assert all(number % 3 == 1 for number in made)


def test_the_work_of_tasks_that_never_came_back_can_be_done_by_one(prepared):
    whole = contents(prepared(TEXT, "whole"))
    prepared(TEXT, "rest", task=PrepareTask(number=1, tasks=3))
    assert contents(prepared(TEXT, "rest")) == whole


def test_a_task_counts_from_zero(prepared):
    with pytest.raises(FolderError, match=r"task 3 of 3: tasks are numbered from 0 to 2"):
        prepared(TEXT, task=PrepareTask(number=3, tasks=3))


@pytest.mark.parametrize("setting", [{"words": "spaces"}, {"on_bad": "skip"}])
def test_settings_that_do_not_change_the_text_do_not_change_the_ids(prepared, setting):
    plain = contents(prepared(TEXT, "plain"))
    other = contents(prepared(TEXT, "other", **setting))
    ids = {name for name in plain if name.endswith((".bin", ".idx"))}
    assert {name: other[name] for name in ids} == {name: plain[name] for name in ids}


def test_a_preparation_that_stopped_after_any_of_its_files_goes_on_to_the_same_bytes(
    prepared, tmp_path
):
    """Every file comes whole into its place, so these are all the states that a crash leaves."""
    text = {"a.txt": prose(60)}
    whole = prepared(text, "whole")
    expected = contents(whole)
    order = sorted(expected, key=lambda name: (whole / name).stat().st_mtime_ns)
    assert (order[0], order[-1]) == (PLAN, MANIFEST)
    for count in range(len(order)):
        folder = tmp_path / f"after {count}"
        folder.mkdir()
        for name in order[:count]:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(whole / name, folder / name)
        assert contents(prepared(text, folder.name)) == expected, order[:count]


def test_killed_at_random_moments_it_goes_on_to_the_same_bytes(long_text, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finished(started(long_text, whole))
    expected = contents(whole)
    shards = len(list(whole.glob("shard-*.json")))
    assert shards > 30
    draw = random.Random()
    for target in sorted(draw.sample(range(1, shards - 10), KILLS)):
        process = started(long_text, killed)
        while len(list(killed.glob("shard-*.json"))) < target and process.poll() is None:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.05))
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert not (killed / MANIFEST).exists()
    finished(started(long_text, killed))
    found = contents(killed)
    assert {name: found[name] for name in found if ".tmp-" not in name} == expected


def test_a_killed_preparation_does_not_make_again_what_is_there(prepared):
    folder = prepared(TEXT)
    (folder / MANIFEST).unlink()
    kept, lost = folder / "shard-00000.bin", folder / "shard-00001.json"
    before = kept.stat().st_mtime_ns, lost.stat().st_mtime_ns
    lost.unlink()
    prepared(TEXT)
    assert kept.stat().st_mtime_ns == before[0]
    assert lost.stat().st_mtime_ns > before[1]


def test_a_preparation_killed_while_it_wrote_its_plan_can_be_started_again(prepared, tmp_path):
    whole = contents(prepared(TEXT, "whole"))
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / f".{PLAN}.tmp-1").write_bytes(b'{"for')
    found = contents(prepared(TEXT, "killed"))
    assert {name: found[name] for name in found if ".tmp-" not in name} == whole


def test_a_finished_corpus_is_left_alone_and_the_user_is_told(prepared):
    folder = prepared(TEXT)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    said = []
    prepared(TEXT, notice=said.append)
    assert said == [f"{folder} is already finished; nothing to do"]
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    locks = set(folder.glob(".lock-*"))
    assert {path: after[path] for path in set(after) - locks} == {
        path: before[path] for path in set(before) - locks
    }


@pytest.mark.parametrize("done", [True, False], ids=["finished", "not finished"])
@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"words": "spaces"}, r"'words' \('pieces' then, 'spaces' now\)"),
        ({"lines": "sentences"}, r"'lines' \('auto' then, 'sentences' now\)"),
        ({"shard_characters": 2000}, r"'shard_characters' \(1000 then, 2000 now\)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_settings_are_refused_by_name(prepared, change, name, done):
    folder = prepared(TEXT)
    if not done:
        (folder / MANIFEST).unlink()
    says = (
        f"^{folder}: was started with a different {name}. Use the same value, or give another --out"
    )
    with pytest.raises(FolderError, match=says):
        prepared(TEXT, **change)


def test_another_tokenizer_is_refused(prepared, vocabulary):
    folder = prepared(TEXT)
    cased = Tokenizer(vocabulary, Casing(lowercase=False))
    with pytest.raises(
        FolderError, match=f"^{folder}: was started with a different 'tokenizer'. Use"
    ):
        prepared(TEXT, by=cased)


@pytest.mark.parametrize(
    "other",
    [
        {"b.jsonl": TEXT["b.jsonl"], "a.txt": TEXT["a.txt"]},
        {"a.txt": TEXT["a.txt"]},
        {**TEXT, "c.txt": "the end\n"},
    ],
    ids=["another order", "a file less", "a file more"],
)
def test_another_input_is_refused(prepared, other):
    folder = prepared(TEXT)
    with pytest.raises(FolderError, match=f"^{folder}: was started with a different 'files' "):
        prepared(other)


def test_a_finished_corpus_says_that_its_input_has_grown(prepared):
    folder = prepared(TEXT)
    with pytest.raises(
        FolderError, match=f"^{folder}: the corpus is finished, but .*a.txt has changed since"
    ):
        prepared({**TEXT, "a.txt": TEXT["a.txt"] + "more\n"})


def test_a_bad_record_may_be_skipped_after_all_or_mended(prepared):
    bad = {"a.txt": TEXT["a.txt"].encode() + b"\xff\n", "b.jsonl": TEXT["b.jsonl"]}
    with pytest.raises(DataError, match="--on-bad skip"):
        prepared(bad)
    folder = prepared(bad, on_bad="skip")
    assert (folder / MANIFEST).exists()


def test_an_input_that_was_changed_in_place_is_refused_with_the_shard_that_shows_it(prepared):
    folder = prepared(TEXT)
    (folder / MANIFEST).unlink()
    at = len(TEXT["a.txt"]) // 2
    changed = TEXT["a.txt"][:at] + "dog" + TEXT["a.txt"][at + 3 :]
    assert changed.encode() != TEXT["a.txt"].encode()
    says = r"shard-0000[1-9]\.json: was made from different text; the input has changed since\. Use"
    with pytest.raises(FolderError, match=says):
        prepared({**TEXT, "a.txt": changed.encode()[: len(TEXT["a.txt"].encode())]})


@pytest.mark.parametrize("kind", ["a folder", "a file"])
def test_what_is_somebody_elses_is_not_written_into(prepared, tmp_path, kind):
    precious = tmp_path / "corpus" / "precious" if kind == "a folder" else tmp_path / "corpus"
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("mine")
    with pytest.raises(FolderError, match=r"corpus: already exists .*\. Give another"):
        prepared(TEXT)
    assert precious.read_text() == "mine"


def test_a_folder_that_is_there_and_empty_is_taken(prepared, tmp_path):
    (tmp_path / "corpus").mkdir()
    assert open_corpus(prepared(TEXT))


def test_standard_input_is_refused_because_it_cannot_be_read_again(tokenizer, tmp_path):
    with pytest.raises(DataError, match="^-: preparing a corpus may have to be resumed.* file fi"):
        prepare(["-"], tokenizer, tmp_path / "corpus", PrepareSettings())


def test_two_preparations_of_one_corpus_are_impossible(prepared, tmp_path):
    prepared(TEXT)
    lock = file_lock(tmp_path / "corpus" / ".lock-0", what="it")
    says = f"process {os.getpid()} on .* is using this corpus"
    with lock, pytest.raises(FolderError, match=says):
        prepared(TEXT)


def test_two_tasks_of_one_corpus_do_not_lock_each_other_out(prepared, tmp_path):
    prepared(TEXT, task=PrepareTask(number=0, tasks=2))
    with file_lock(tmp_path / "corpus" / ".lock-0", what="it"):
        prepared(TEXT, task=PrepareTask(number=1, tasks=2))


def test_every_record_is_used_skipped_or_blank(prepared):
    lines = ['{"text": "the cat"}', '{"text": " "}', "", '{"text": 7}', '{"txt": "a"}', "[]"]
    folder = prepared(
        {"a.jsonl": "\n".join(lines * 30), "b.txt": b"one\n\nt\xffo\nthree"}, on_bad="skip"
    )
    used, skipped, blank = 30 + 2, 3 * 30 + 1, 30  # a line without anything is no record
    assert records(folder) == {
        "read": used + skipped + blank,
        "used": used,
        "skipped": skipped,
        "blank": blank,
    }


def test_what_is_skipped_is_written_down_in_its_order(prepared, tmp_path):
    folder = prepared({"a.txt": b"one\nt\xffo\nthree\nf\xffur\n"}, on_bad="skip")
    entries = [json.loads(line) for line in (folder / SIDE_FILE).read_text().splitlines()]
    assert [entry["why"].partition(": ")[0] for entry in entries] == [
        f"{tmp_path / 'a.txt'}:2",
        f"{tmp_path / 'a.txt'}:4",
    ]
    assert [entry["text"] for entry in entries] == ["t\\xffo\n", "f\\xffur\n"]


def test_a_side_file_is_the_same_whichever_task_comes_last(prepared):
    text = {"a.txt": prose(200).encode() + b"\xff\n"}
    one = contents(prepared(text, "one", on_bad="skip"))
    assert SIDE_FILE in one
    for number in (1, 0):
        folder = prepared(text, "two", task=PrepareTask(number=number, tasks=2), on_bad="skip")
    assert contents(folder) == one


def test_without_anything_bad_there_is_no_side_file(prepared):
    assert SIDE_FILE not in contents(prepared(TEXT, on_bad="skip"))


def test_a_text_without_a_token_is_no_corpus(prepared):
    with pytest.raises(DataError, match="corpus: the input contains no tokens"):
        prepared({"a.txt": "\x01\n\x02\n"})


def test_how_each_file_was_understood_is_told_and_kept(prepared):
    said = []
    folder = prepared(TEXT, notice=said.append)
    assert said == [
        "a.txt: blank lines separate documents; each line is a sentence",
        "b.jsonl: each record is a document, split into sentences",
    ]
    assert list(json.loads((folder / MANIFEST).read_text())["layout"]) == list(TEXT)


def test_progress_counts_the_bytes_of_the_input(tokenizer, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(prose(10_000))
    seen = []
    settings = PrepareSettings(shard_characters=10_000)
    told = {"progress": lambda *reached: seen.append(reached), "notice": lambda line: None}
    prepare([str(path)], tokenizer, tmp_path / "corpus", settings, **told)
    done, totals = zip(*seen, strict=True)
    assert len(done) > 10
    assert list(done) == sorted(done)
    assert set(totals) == {path.stat().st_size} == {done[-1]}


def test_a_shard_ends_with_the_document_that_fills_it(prepared):
    sizes = [len(line) for line in TEXT["a.txt"].split("\n") if line]
    folder = prepared({"a.txt": TEXT["a.txt"]}, lines="documents")
    for path in sorted(folder.glob("shard-*.json"))[:-1]:
        made = json.loads(path.read_text())["statistics"]
        mine, sizes = sizes[: made["documents"]], sizes[made["documents"] :]
        assert sum(mine) == made["characters"] >= 1000 > sum(mine[:-1])


def test_a_document_is_in_one_shard(prepared):
    corpus = open_corpus(prepared({"a.txt": prose(300)}))
    starts = set(corpus.sentences[corpus.documents])
    assert set(corpus.shard_starts) <= starts


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"lines": "paragraphs"}, "lines"),
        ({"words": "letters"}, "words"),
        ({"on_bad": "ignore"}, "on_bad"),
        ({"shard_characters": 999}, "shard_characters"),
    ],
)
def test_a_setting_has_its_values_and_no_other(setting, says):
    with pytest.raises(ValueError, match=says):
        PrepareSettings(**setting)


def test_a_plan_of_very_many_files_can_be_read_again(tmp_path, tokenizer):
    path = tmp_path / f"{'a' * 200}.txt"
    path.write_text("the cat sat.\n")
    manifest = prepare([str(path)] * 6000, tokenizer, tmp_path / "corpus", PrepareSettings())
    assert manifest["records"]["used"] == 6000
