"""Damage on disk: in a folder that unmask wrote, any changed byte is found and its file named."""

import contextlib
import random

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.integrity import verify
from unmask.system.errors import UserError
from unmask.system.manifest import MODEL_MANIFEST

FLIPS, CUTS, SAMPLED = 1_800, 200, 50  # each fiftieth also by reading the whole folder
PAGE = 4096  # what a disk or a memory loses at once
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("damage") / "model"
    network = tiny_network(bert_heads(tokens=True, pair=True))
    save_folder(path, network, tokenizer, recipe={"rate": 1e-05, "name": "é"})
    return path


@pytest.fixture
def names(folder):
    """The files of the folder, the manifest among them; whole before and after each test."""
    assert verify(folder)
    yield sorted(path.name for path in folder.iterdir())
    assert verify(folder)


@contextlib.contextmanager
def changed(path, raw):
    """Other bytes in a file, for the time of a block."""
    before = path.read_bytes()
    assert raw != before
    path.write_bytes(raw)
    try:
        yield
    finally:
        path.write_bytes(before)


def flipped(raw, bit):
    """The bytes with one bit changed."""
    out = bytearray(raw)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


def detected(check, path):
    """Whether a damaged file is refused, and by its name."""
    try:
        check(path.parent)
    except UserError as error:
        return str(path) in str(error)
    return False


def test_every_flipped_bit_and_every_cut_is_detected_and_the_file_named(folder, names):
    draw = random.Random(0)
    missed, per_file = [], dict.fromkeys(names, 0)
    for number in range(FLIPS + CUTS):
        path = folder / draw.choice(names)
        raw = path.read_bytes()
        place = draw.randrange(8 * len(raw))
        damaged = flipped(raw, place) if number < FLIPS else raw[: place // 8]
        with changed(path, damaged):
            found = detected(verify, path)
            if number % SAMPLED == 0:
                found = found and detected(load_folder, path)
        missed += [] if found else [(path.name, place)]
        per_file[path.name] += 1
    assert missed == []
    assert sum(per_file.values()) == 2_000
    assert min(per_file.values()) > 200  # each of the eight files had its share


def test_each_single_bit_of_the_manifest_matters(folder, names):
    path = folder / MODEL_MANIFEST
    raw = path.read_bytes()
    missed = []
    for bit in range(8 * len(raw)):
        path.write_bytes(flipped(raw, bit))
        if not detected(verify, path):
            missed.append((bit, raw[bit // 8 - 10 : bit // 8 + 10]))
    path.write_bytes(raw)
    assert missed == []


def test_a_manifest_cut_at_any_length_is_detected(folder, names):
    path = folder / MODEL_MANIFEST
    raw = path.read_bytes()
    missed = []
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        if not detected(verify, path):
            missed.append(length)
    path.write_bytes(raw)
    assert missed == []


def test_bytes_appended_to_any_file_are_detected(folder, names):
    missed = []
    for name in names:
        path = folder / name
        for added in (b"\n", b" ", b"\0"):
            with changed(path, path.read_bytes() + added):
                missed += [] if detected(verify, path) else [(name, added)]
    assert missed == []


def test_a_zeroed_page_is_detected(folder, names):
    path = folder / WEIGHTS
    raw = path.read_bytes()
    pages = range(0, len(raw), PAGE)
    assert len(pages) >= 6
    for begin in pages:
        zeros = bytes(len(raw[begin : begin + PAGE]))
        with changed(path, raw[:begin] + zeros + raw[begin + PAGE :]):
            assert detected(verify, path)
            assert detected(load_folder, path)


def test_a_missing_file_is_named(folder, names, tmp_path):
    for name in names:
        if name == MODEL_MANIFEST:
            continue
        (folder / name).rename(tmp_path / name)
        try:
            with pytest.raises(UserError, match=f"{name}: is missing, but unmask.json lists it"):
                verify(folder)
        finally:
            (tmp_path / name).rename(folder / name)


def test_a_folder_that_lost_its_manifest_is_read_as_somebody_elses(folder, names, tmp_path):
    (folder / MODEL_MANIFEST).rename(tmp_path / MODEL_MANIFEST)
    try:
        assert verify(folder) is None
        assert load_folder(folder).manifest is None
    finally:
        (tmp_path / MODEL_MANIFEST).rename(folder / MODEL_MANIFEST)


def test_two_files_that_changed_places_are_detected(folder, names):
    one, other = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    first, second = one.read_bytes(), other.read_bytes()
    with changed(one, second), changed(other, first):
        assert detected(verify, one) or detected(verify, other)


def test_the_manifest_of_another_folder_is_detected(folder, names, tmp_path, tokenizer):
    network = tiny_network(bert_heads(tokens=True, pair=True))
    with torch.no_grad():
        network.encoder.embeddings.tokens.weight[3, 5] += 1e-6
    save_folder(tmp_path / "model", network, tokenizer)
    stale = (tmp_path / "model" / MODEL_MANIFEST).read_bytes()
    with (
        changed(folder / MODEL_MANIFEST, stale),
        pytest.raises(UserError, match=f"{WEIGHTS}: was changed since it was written"),
    ):
        load_folder(folder)


def test_without_digests_a_flipped_bit_would_be_read_in_silence(folder, names):
    """Why we have them: a safetensors file has no checksum, and any number is a good number."""
    path = folder / WEIGHTS
    before = {name: tensor.clone() for name, tensor in load_file(path).items()}  # else a view
    raw = path.read_bytes()
    with changed(path, flipped(raw, 8 * len(raw) - 2)):  # of the last number's exponent
        after = load_file(path)
        different = [name for name in before if not torch.equal(before[name], after[name])]
        assert len(different) == 1
        assert detected(verify, path)
