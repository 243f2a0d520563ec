"""ONNX: what a runtime says is what the live model says, for every head and kind of position."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.infer.compiled import export
from unmask.infer.compiled.export import export_onnx
from unmask.model.shape import LabelsConfig
from unmask.system.errors import FolderError

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

NAMES = ("a", "b", "c")
SEVERAL = {
    "mood": LabelsConfig(on="text", names=NAMES),
    "names": LabelsConfig(on="token", names=("O", "B-X")),
}
CASES = {  # heads, what else is unusual, outputs
    "encoder": (bert_heads(), {}, ["last_hidden_state", "pooler_output", "sentence_embedding"]),
    "encoder without a pooler": (
        bert_heads(pooler=False),
        {"positions": "rotary", "norm": "pre", "gated": True},
        ["last_hidden_state", "sentence_embedding"],
    ),
    "texts": (bert_heads(labels="text", label_names=NAMES), {}, ["logits"]),
    "tokens": (
        bert_heads(pooler=False, labels="token", label_names=NAMES),
        {"positions": "shaw", "window": 3},
        ["logits"],
    ),
    "spans": (
        bert_heads(pooler=False, labels="span", label_names=("start", "end")),
        {"positions": "t5", "causal": True},
        ["start_logits", "end_logits"],
    ),
    "masked tokens": (bert_heads(tokens=True), {"positions": "sinusoidal"}, ["logits"]),
    "pre-training": (
        bert_heads(tokens=True, pair=True),
        {},
        ["prediction_logits", "seq_relationship_logits"],
    ),
    "features of layers": (
        bert_heads(pooler=False, labels="text", label_names=NAMES, layers=(0, 2)),
        {"positions": "none"},
        ["logits"],
    ),
    "several": (bert_heads(several=SEVERAL), {}, ["mood_logits", "names_logits"]),
}


OFTEN = {"encoder", "encoder without a pooler", "tokens", "several"}  # in every run of the tests


def cases():
    """The others take as long, and have less of their own."""
    return [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.full) for name in CASES]


@pytest.fixture(scope="module", params=cases())
def exported(request, tmp_path_factory, tokenizer):
    heads, changes, outputs = CASES[request.param]
    place = tmp_path_factory.mktemp("export")
    save_folder(place / "model", tiny_network(heads, **changes), tokenizer)
    difference = export_onnx(load_folder(place / "model"), place / "onnx")
    assert difference < 1e-4
    return place, outputs


def test_a_runtime_says_what_the_model_says(exported):
    place, outputs = exported
    session = onnxruntime.InferenceSession(place / "onnx" / "model.onnx")
    assert [found.name for found in session.get_outputs()] == outputs
    assert [found.name for found in session.get_inputs()] == list(export.INPUTS)
    network = load_folder(place / "model").network
    ids = np.array([[2, 7, 9, 8, 3], [2, 6, 3, 0, 0]])
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    said = dict(zip(outputs, session.run(outputs, inputs), strict=True))
    trace: list[torch.Tensor] = []
    with torch.inference_mode():
        zeros = torch.zeros(1, 3, dtype=torch.long)
        short = torch.tensor([[2, 6, 3]])
        network.encoder(short, zeros, torch.arange(3)[None], zeros, trace=trace)
        alone = export.outputs_of(network, trace, torch.ones(1, 3))
    assert list(alone) == outputs
    for name, truth in alone.items():
        padded = said[name][1:]
        found = padded[:, :3] if padded.shape[1:2] == (5,) else padded
        np.testing.assert_allclose(found, truth.numpy(), atol=1e-5)


def test_its_own_page_shows_how_to_run_it(exported):
    place, outputs = exported
    (code,) = re.findall("```python\n(.*?)```", (place / "onnx" / "README.md").read_text(), re.S)
    shown = f"{code}\nprint(found.shape[0])"
    done = subprocess.run(
        [sys.executable, "-c", shown], cwd=place / "onnx", capture_output=True, text=True
    )
    assert done.stdout == "2\n", done.stderr
    assert f'"{outputs[-1]}"' in code


@pytest.mark.parametrize(("by", "said"), [(0.1, r"1\.0e-01"), (float("nan"), "nan")])
def test_a_graph_that_says_something_else_is_not_written(
    tmp_path, tokenizer, monkeypatch, by, said
):
    save_folder(tmp_path / "model", tiny_network(), tokenizer)
    monkeypatch.setattr(export, "_live", _shifted(export._live, by))
    with pytest.raises(FolderError, match=f"differs from the live model by {said}; need at most"):
        export_onnx(load_folder(tmp_path / "model"), tmp_path / "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def _shifted(live, by):
    return lambda *inputs: {name: value + by for name, value in live(*inputs).items()}


def test_a_folder_name_may_have_the_characters_of_patterns(tmp_path, tokenizer):
    save_folder(tmp_path / "model", tiny_network(), tokenizer)
    export_onnx(load_folder(tmp_path / "model"), tmp_path / "[o]*?")
    assert onnxruntime.InferenceSession(tmp_path / "[o]*?" / "model.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["[o]*?", "model"]


def test_an_output_that_cannot_be_written_is_refused_before_the_graph(tmp_path, tokenizer):
    save_folder(tmp_path / "model", tiny_network(), tokenizer)
    (tmp_path / "link").symlink_to(tmp_path)
    folder = replace(load_folder(tmp_path / "model"), tokenizer=None)  # would be refused next
    with pytest.raises(FolderError, match=r"link: already exists \(a symbolic link"):
        export_onnx(folder, tmp_path / "link")
