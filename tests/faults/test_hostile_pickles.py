"""Pickled weights: converted in a child when they are honest, refused without harm when not."""

import io
import pickle
import resource
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.faults.spoil import *
from unmask.checkpoint.convert import convert
from unmask.checkpoint.folder import load_folder


def bare(value):
    return lambda folder: pickle.dumps(value(folder), protocol=2)  # torch reads no later one


def zipped(value):
    return lambda folder: saved(value(folder))


def legacy(value):
    """The format before torch 1.6, which is no zip."""
    return lambda folder: saved(value(folder), _use_new_zipfile_serialization=False)


def archive(*members, compression=zipfile.ZIP_STORED):
    """A zip of any members, among them two of one name."""

    def write(_):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", compression) as archive:
            for name, size in members:
                info = zipfile.ZipInfo(name)
                info.compress_type = compression
                archive.writestr(info, bytes(size))
        return file.getvalue()

    return write


def storage_of_400_GB(folder):
    """A file of the old format that says its tensor has 10^11 numbers."""
    raw = saved({"a": torch.zeros(12_345)}, _use_new_zipfile_serialization=False)
    claimed = b"\x8a\x05" + (10**11).to_bytes(5, "little")  # LONG1 for BININT2
    return raw.replace(b"M" + (12_345).to_bytes(2, "little"), claimed)


PICKLES = {  # in a child, which needs seconds to import torch
    "command-in-a-zip": (zipped(lambda f: {"a": Command(f)}), "posix.system"),
    "command-in-a-bare-pickle": (bare(Command), "posix.system"),
    "eval-in-the-old-format": (legacy(lambda f: {"a": Command(f, eval)}), "eval"),
    "not-only-tensors": (zipped(lambda _: {"epoch": 3}), "'epoch' is a int; need tensors only"),
    "no-table": (zipped(lambda _: [torch.zeros(1)]), "a list; need"),
    "stride-0": (
        zipped(lambda _: {"a": torch.zeros(1).expand(10**9)}),
        "tensor 'a' is larger than its stored data",
    ),
    "storage-of-400-GB": (storage_of_400_GB, "400000000000 bytes"),
    "cut-off": (lambda f: saved({"a": torch.zeros(9)})[:-30], "refused"),
    "40k-members": (archive(*((f"a/{i}", 0) for i in range(40_000))), ANY),
    "type-of-another-model": (zipped(lambda _: {"a": torch.zeros(3, dtype=torch.int8)}), "'a'"),
}
ZIPS = {  # refused from the zip's directory, without a child
    "repeated": (archive(("a/data.pkl", 1), ("a/data.pkl", 1)), "occurs twice"),
    "repeated-in-capitals": (archive(("a/data.pkl", 1), ("a/DATA.pkl", 1)), "occurs twice"),
    "bomb": (
        archive(("a/data.pkl", 20 * MB), compression=zipfile.ZIP_DEFLATED),
        "is compressed",
    ),
    "upwards": (archive(("a/../../data.pkl", 1)), "leads outside"),
    "absolute": (archive(("/etc/data.pkl", 1)), "leads outside"),
}


@pytest.mark.timeout(30, func_only=True)
@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("write", "reason", "within"),
    [pytest.param(*case, CHILD_SECONDS, id=name) for name, case in PICKLES.items()]
    + [pytest.param(*case, SECONDS, id=f"zip-{name}") for name, case in ZIPS.items()],
)
def test_a_hostile_pickle_is_not_converted(folder, tmp_path, write, reason, within):
    (folder / WEIGHTS).unlink()
    (folder / PICKLED).write_bytes(write(folder))
    target = tmp_path / "converted"
    others = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with bounded():
        message = refusal(lambda: convert(folder, target), folder, within=within)
    assert PICKLED in message
    assert reason in message
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert largest == others or largest * 1024 < CHILD_MEMORY
    assert not target.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "secret"]


def old_names(weights):
    """As the first BERTs were saved: gamma and beta, a counter, the tied decoder beside it."""
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in weights.items()
    }
    renamed["bert.embeddings.position_ids"] = torch.arange(32)[None]
    renamed[DECODER] = weights[EMBEDDINGS].clone()
    turned = [name for name in renamed if name.endswith("dense.weight")]
    for name in turned:  # TensorFlow's kernels are the other way round, and were kept as views
        renamed[name] = renamed[name].T.contiguous().T
    return renamed


@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "before-torch-1.6"])
def test_a_good_old_pickle_is_converted_with_the_same_weights(folder, tmp_path, as_zip):
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    old = old_names(weights)
    torch.save(old, folder / PICKLED, _use_new_zipfile_serialization=as_zip)
    convert(folder, tmp_path / "converted")
    converted = load_file(tmp_path / "converted" / WEIGHTS)
    assert sum(name.endswith(".gamma") for name in old) == 6
    assert converted.keys() == weights.keys()
    assert all(torch.equal(converted[name], weights[name]) for name in weights)
    assert load_folder(tmp_path / "converted").manifest["provenance"]["converted from"] == "model"


def test_a_pickle_in_the_current_folder_is_converted(folder, tmp_path, monkeypatch):
    pickle_only(folder)
    monkeypatch.chdir(folder)
    convert(Path("."), tmp_path / "converted")
    assert load_folder(tmp_path / "converted").manifest["provenance"]["converted from"] == "model"


def test_a_pickle_beside_good_weights_is_never_opened(folder):
    (folder / PICKLED).write_bytes(saved({"a": Command(folder)}))
    with_code(folder)
    load_folder(folder)
    assert not (folder.parent / CANARY).exists()


def test_weights_may_be_a_link_to_a_file_elsewhere(folder, tmp_path):
    expected = load_folder(folder).network.state_dict()
    (folder / WEIGHTS).rename(tmp_path / "blob")
    (folder / WEIGHTS).symlink_to(tmp_path / "blob")
    read = load_folder(folder).network.state_dict()
    assert all(torch.equal(read[name], expected[name]) for name in expected)


def test_the_canary_would_show_a_command_that_ran(tmp_path):
    (tmp_path / "model").mkdir()
    pickle.loads(pickle.dumps(Command(tmp_path / "model")))
    assert (tmp_path / CANARY).exists()
