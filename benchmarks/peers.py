"""Other runtimes that embed texts on a CPU: ONNX Runtime, OpenVINO, CTranslate2 and more.

Each is used as its documentation advises. All use the same weights, sort texts by length, pad a
batch to its longest text and average the hidden states of each text. Except sentence-transformers,
which has a loop of its own, each is used in two ways: batches of 32 texts on all cores, one after
the other; and, like unmask, batches of about 512 tokens side by side, one on each core. Preparation
(graphs, calibration) is not timed.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.checkpoint.folder import load_folder

BATCH, TOKENS = 32, 512  # texts of a batch on all cores; tokens of a batch on one core
States = NDArray[np.float32]
Ids = list[list[int]]
Inputs = dict[str, NDArray[np.int64]]


class Peer:
    """Embeds texts with a runtime: tokenize, sort, run the batches, pool, restore the order."""

    def __init__(
        self, model: Path, states: Callable[[Inputs], States], *, at_once: int = 1
    ) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(512)
        self.states, self.at_once = states, at_once

    def __call__(self, texts: Sequence[str]) -> States:
        """Return one vector per text."""
        read = self.ids(texts)
        order = sorted(range(len(texts)), key=lambda i: -len(read[i]))
        found = self.each([[read[i] for i in part] for part in self.parts(order, read)])
        out = np.empty((len(texts), found[0].shape[1]), np.float32)
        out[order] = np.concatenate(found)
        return out

    def ids(self, texts: Sequence[str]) -> Ids:
        """Return the token ids of each text."""
        return [text.ids for text in self.tokenizer.encode_batch_fast(list(texts))]

    def parts(self, order: Sequence[int], read: Ids) -> list[list[int]]:
        """Cut texts, sorted from long to short, into batches; return their numbers."""
        parts: list[list[int]] = [[]]
        for i in order:
            longest = len(read[(parts[-1] or [i])[0]])
            most = TOKENS // longest if self.at_once > 1 else BATCH
            if len(parts[-1]) >= max(most, 1):
                parts.append([])
            parts[-1].append(i)
        return parts

    def each(self, parts: Sequence[Ids]) -> list[States]:
        """Return the vectors of each batch."""
        if self.at_once == 1:
            return [self.vectors(part) for part in parts]
        with ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(self.vectors, parts))

    def vectors(self, part: Ids) -> States:
        """Return the vectors of a batch."""
        inputs = padded(part)
        return pooled(self.states(inputs), inputs)


def pooled(states: States, inputs: Inputs) -> States:
    """Average the states of each text and scale to length 1.  [B, S, D] -> [B, D]"""
    mask = inputs["attention_mask"][:, :, None].astype(np.float32)
    mean = (states * mask).sum(axis=1) / mask.sum(axis=1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def padded(some: Ids) -> Inputs:
    """Pad texts to the longest; return the inputs of a BERT graph."""
    longest = max(map(len, some))
    ids = np.zeros((len(some), longest), np.int64)
    for row, text in zip(ids, some, strict=True):
        row[: len(text)] = text
    lengths = np.array([len(text) for text in some])
    mask = (np.arange(longest) < lengths[:, None]).astype(np.int64)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def sentence_transformers(model: Path, threads: int) -> Callable[[Sequence[str]], States]:
    """Return sentence-transformers' `encode`, which sorts and batches by itself."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    loaded = SentenceTransformer(str(model), device="cpu")
    return lambda texts: loaded.encode(list(texts), normalize_embeddings=True, batch_size=BATCH)


def onnx_runtime(model: Path, place: Path, threads: int, *, int8: bool, apart: bool) -> Peer:
    """Return ONNX Runtime with the exported and fused graph; int8 is dynamic, per channel.

    ONNX Runtime's documentation advises dynamic quantization for Transformers.
    """
    import onnxruntime

    path = _fused(model, place)
    if int8:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        path, plain = place / "int8.onnx", path
        if not path.exists():
            quantize_dynamic(
                plain,
                path,
                weight_type=QuantType.QInt8,
                per_channel=True,
                reduce_range=not vnni(),
                extra_options={"DefaultTensorType": 1},  # float, for fused operators
            )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1 if apart else threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return Peer(
        model,
        lambda inputs: session.run(["last_hidden_state"], inputs)[0],
        at_once=threads if apart else 1,
    )


def openvino(
    model: Path, place: Path, threads: int, texts: Sequence[str], *, int8: bool, apart: bool
) -> Peer:
    """Return OpenVINO with the exported graph; int8 by NNCF; `apart` has a stream for each core."""
    import openvino as ov

    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads})
    if not int8:  # otherwise it uses bfloat16 where the CPU supports it
        core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    path = _exported(model, place)
    if int8:
        path, plain = place / "int8.xml", path
        if not path.exists():
            ov.save_model(_calibrated(core.read_model(plain), model, texts), path)
    hint: dict[str, Any] = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": threads}
    if not apart:
        hint = {"PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(path, "CPU", hint)
    if apart:
        return Queued(model, ov.AsyncInferQueue(compiled), at_once=threads)
    request = compiled.create_infer_request()
    return Peer(model, lambda inputs: request.infer(inputs)["last_hidden_state"])


class Queued(Peer):
    """OpenVINO with one batch per stream at a time."""

    def __init__(self, model: Path, queue: Any, at_once: int) -> None:
        super().__init__(model, lambda inputs: np.empty(0), at_once=at_once)
        self.queue = queue

    def each(self, parts: Sequence[Ids]) -> list[States]:
        """Submit all batches; each is pooled in a callback as soon as it is done."""
        found: list[States] = [np.empty(0)] * len(parts)

        def keep(request: Any, number: int) -> None:
            # Pooled here: the tensor is reused by the next batch of this request.
            states = request.get_tensor("last_hidden_state").data
            found[number] = pooled(states, inputs[number])

        inputs = [padded(part) for part in parts]
        self.queue.set_callback(keep)
        for number, own in enumerate(inputs):
            self.queue.start_async(own, number)
        self.queue.wait_all()
        return found


def ctranslate2(model: Path, place: Path, threads: int, *, int8: bool, apart: bool) -> Peer:
    """Return CTranslate2's encoder, with its own format and kernels."""
    import ctranslate2 as ct2

    folder = place / "ctranslate2"
    if not folder.exists():
        ct2.converters.TransformersConverter(str(model)).convert(str(folder))
    kind = "int8" if int8 else "float32"
    each, cores = (threads, 1) if apart else (1, threads)
    encoder = ct2.Encoder(str(folder), compute_type=kind, inter_threads=each, intra_threads=cores)

    def states(inputs: Inputs) -> States:
        # It takes token ids without padding.
        lengths = inputs["attention_mask"].sum(axis=1)
        ids = [row[:n].tolist() for row, n in zip(inputs["input_ids"], lengths, strict=True)]
        return np.asarray(encoder.forward_batch(ids).last_hidden_state)

    return Peer(model, states, at_once=each)


def vnni() -> bool:
    """Tell whether the CPU has int8 dot products (VNNI).

    Without them, 8-bit products are summed in 16 bits and may overflow, so weights get 7 bits.
    """
    return any(name in Path("/proc/cpuinfo").read_text() for name in ("avx512_vnni", "avx_vnni"))


def _exported(model: Path, place: Path) -> Path:
    """Export transformers' BertModel to ONNX.

    With torch's older exporter: the fusion recognizes attention only in its graphs.
    """
    import torch
    from transformers import BertModel

    path = place / "bert.onnx"
    if path.exists():
        return path
    network = BertModel.from_pretrained(model, attn_implementation="eager").eval()
    some = padded([[101, 102], [101, 1037, 102]])
    names = list(some)

    class Named(torch.nn.ModuleDict):
        def forward(self, *inputs: torch.Tensor) -> Any:
            return self["bert"](**dict(zip(names, inputs, strict=True))).last_hidden_state

    with torch.no_grad():
        torch.onnx.export(
            Named({"bert": network}),
            tuple(torch.from_numpy(own) for own in some.values()),
            path,
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes={
                name: {0: "texts", 1: "length"} for name in [*names, "last_hidden_state"]
            },
            dynamo=False,
        )
    return path


def _fused(model: Path, place: Path) -> Path:
    """Fuse the graph's operators with ONNX Runtime's own tool for Transformers."""
    from onnxruntime.transformers import optimizer

    path = place / "fused.onnx"
    if not path.exists():
        config = load_folder(model).network.config
        made = optimizer.optimize_model(
            str(_exported(model, place)),
            model_type="bert",
            num_heads=config.heads,
            hidden_size=config.width,
        )
        print("fused:", made.get_fused_operator_statistics())
        made.save_model_to_file(str(path))
    return path


def _calibrated(graph: Any, model: Path, texts: Sequence[str]) -> Any:
    import nncf

    read = Peer(model, lambda inputs: np.empty(0)).ids(texts)
    data = nncf.Dataset([padded([ids]) for ids in read])
    return nncf.quantize(graph, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(read))
