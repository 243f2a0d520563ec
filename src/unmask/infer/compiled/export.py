"""Model -> ONNX for other runtimes, written only if its outputs equal those of the model.

Each row is one text or pair, padded. Inputs and outputs are named as in transformers:

    input_ids, attention_mask, token_type_ids   [batch, length]

    encoder           last_hidden_state, pooler_output, sentence_embedding (mean, of unit length)
    labels            logits; start_logits and end_logits for spans; NAME_logits for several heads
    masked tokens     logits, or prediction_logits and seq_relationship_logits with a pair head
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.checkpoint.folder import CARD, Folder, write_settings
from unmask.checkpoint.integrity import publish
from unmask.infer.compiled.graph import (
    GraphSession,
    refuse_other_encoders,
    refuse_other_than_transformers,
    write_onnx,
)
from unmask.infer.pooling import mean_of_rows
from unmask.model.factory import part_of
from unmask.model.network import Network, PlainRows
from unmask.model.shape import PAIR, POOLER, RESERVED_NAMES, TOKENS
from unmask.system.disk import check_output_folder
from unmask.system.errors import FolderError

INPUTS = "input_ids", "attention_mask", "token_type_ids"
TOLERANCE = 1e-3  # largest difference; another order of sums rounds numbers around 1 differently
CHECKED = ((1, 2), (3, 17), (2, 64))  # batch sizes and lengths to compare
FILE = "model.onnx"
CARD_TEXT = """\
# {name}

`model.onnx`, written by unmask. Inputs: input_ids, attention_mask, token_type_ids, each an
integer array of shape [batch, length]. Outputs: {outputs}.

```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.enable_padding()
tokenizer.enable_truncation({limit})
session = onnxruntime.InferenceSession("model.onnx")
encoded = tokenizer.encode_batch(["one text", "another, longer text"])
inputs = {{
    "input_ids": np.array([text.ids for text in encoded]),
    "attention_mask": np.array([text.attention_mask for text in encoded]),
    "token_type_ids": np.array([text.type_ids for text in encoded]),
}}
(found,) = session.run(["{output}"], inputs)
```
"""


class PaddedNetwork(nn.Module):
    """A network with the inputs and outputs of transformers: one padded text per row."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        # Run the heads once on a dummy, because their outputs depend on the shape of the network.
        states = [torch.ones(1, 1, network.config.width)] * (network.config.layers + 1)
        self.names = list(outputs_of(network, states, torch.ones(1, 1)))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the encoder and the heads.  3 x [B, S] -> the outputs, in the order of `names`"""
        index = torch.arange(input_ids.shape[1], device=input_ids.device).expand(input_ids.shape)
        trace: list[Tensor] = []
        # The attention mask serves as owner: real tokens (1) attend to each other, padding (0) to
        # padding. `shared` keeps the mask in the graph whatever the example inputs look like.
        rows = PlainRows(input_ids, token_type_ids, index, attention_mask)
        self.network.encode(rows, trace=trace, shared=True)
        return tuple(outputs_of(self.network, trace, attention_mask).values())


def outputs_of(network: Network, trace: list[Tensor], mask: Tensor) -> dict[str, Tensor]:
    """Compute the outputs of all heads from the hidden states, with transformers' names.

    (layers + 1) x [B, S, D], [B, S] -> {name: [B, ...]}
    """
    shape, last = network.shape, trace[-1]
    if task_heads := shape.several():
        return {
            f"{name}_{key}": value
            for name in task_heads
            for key, value in outputs_of(part_of(network, [name]), trace, mask).items()
        }
    if shape.labels:
        scores = network.scores_of_labels(trace)
        if shape.labels.on == "span":
            return {"start_logits": scores[..., 0], "end_logits": scores[..., 1]}
        return {"logits": scores}
    outputs = {}
    if TOKENS in shape.heads:
        name = "prediction_logits" if PAIR in shape.heads else "logits"
        outputs[name] = network.token_scores(network.mixed(trace, TOKENS))
    if PAIR in shape.heads:
        outputs["seq_relationship_logits"] = network.pair_scores(network.mixed(trace, PAIR)[:, 0])
    if outputs:
        return outputs
    mean = mean_of_rows(last, mask)
    outputs = {"last_hidden_state": last}
    if POOLER in shape.heads:
        outputs["pooler_output"] = network.pool(network.mixed(trace, POOLER)[:, 0])
    return {**outputs, "sentence_embedding": F.normalize(mean, dim=-1)}


def export_onnx(folder: Folder, out: Path) -> float:
    """Export a model to a new folder: `model.onnx`, the tokenizer and a README.

    Return the largest difference found between the graph and the model. If it is too large, raise
    an error and write nothing.
    """
    check_output_folder(out, renamed=True)
    refuse_other_than_transformers(folder.network, folder.path)
    exported = (*RESERVED_NAMES, *folder.network.shape.several())
    refuse_other_encoders(folder.network, folder.path, exported, "an exported graph covers")
    tokenizer = folder.needed_tokenizer()
    about = {"exported": str(folder.path), "task": (folder.manifest or {}).get("task")}
    with publish(out, about) as folder_path:
        path = folder_path / FILE
        graph = PaddedNetwork(folder.network).eval()
        ids, mask = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)
        # A tensor passed twice would become a single input, hence zeros_like. Sizes of 0 and 1
        # would be taken as constants, hence 2 x 3.
        inputs = dict(zip(INPUTS, (ids, mask, torch.zeros_like(ids)), strict=True))
        write_onnx(graph, inputs, graph.names, path)
        difference = _difference(path, graph)
        if not difference <= TOLERANCE:  # written this way, NaN is refused, too
            raise FolderError(
                f"{folder.path}: the ONNX graph differs from the live model by {difference:.1e}; "
                f"need at most {TOLERANCE:.0e}. Nothing was written; this is a bug in unmask or "
                "in the installed torch, onnxscript or onnxruntime. Please report it."
            )
        write_settings(folder_path, folder.network, tokenizer)
        limit = folder.network.config.max_length
        card = CARD_TEXT.format(
            name=out.name, outputs=", ".join(graph.names), output=graph.names[-1], limit=limit
        )
        (folder_path / CARD).write_text(card, "utf-8", newline="\n")
    return difference


def _difference(path: Path, graph: PaddedNetwork) -> float:
    """Return the largest difference between the graph and the network.

    The graph gets padded batches, the network each text alone, so wrong padding shows, too.
    """
    from onnxruntime import InferenceSession

    session: GraphSession = InferenceSession(path, providers=["CPUExecutionProvider"])
    config = graph.network.config
    generator = np.random.default_rng(0)
    differences = [0.0]
    for texts, longest in (*CHECKED, (1, config.max_length)):
        shape = texts, min(longest, config.max_length)
        lengths = generator.integers(2, shape[1], size=texts, endpoint=True)
        lengths[0] = shape[1]  # no batch is padded further than its longest text
        text_lengths: list[int] = lengths.tolist()
        inputs = {
            "input_ids": generator.integers(0, config.vocab_size, size=shape),
            "attention_mask": (np.arange(shape[1]) < lengths[:, None]).astype(np.int64),
            "token_type_ids": generator.integers(0, config.segments, size=shape),
        }
        batched_outputs = session.run(graph.names, inputs)
        for text, length in enumerate(text_lengths):
            single_inputs = [
                torch.from_numpy(inputs[name][text : text + 1, :length]) for name in INPUTS
            ]
            for padded, expected in zip(
                batched_outputs, _live(graph.network, *single_inputs).values(), strict=True
            ):
                actual = torch.from_numpy(padded[text : text + 1])
                # Outputs for padding mean nothing; compare the real tokens.
                for dim, size in enumerate(expected.shape):
                    actual = actual.narrow(dim, 0, size)
                differences.append(float((actual - expected).abs().max()))
    return float(np.max(differences))  # unlike Python's max, it keeps NaN


@torch.inference_mode()
def _live(network: Network, ids: Tensor, mask: Tensor, segments: Tensor) -> dict[str, Tensor]:
    """Run the network on one text, in the way it runs outside of exported graphs."""
    trace: list[Tensor] = []
    index = torch.arange(ids.shape[1])[None]
    network.encode(PlainRows(ids, segments, index, torch.zeros_like(ids)), trace=trace)
    return outputs_of(network, trace, mask)
