"""Others that turn texts into vectors on a processor, each as good as its users make it.

All of them read the same weights, texts sorted by length, batches padded to their longest text, and
average the states of each text. Each but sentence-transformers, whose loop is its own, is used in
two ways: batches of 32 texts on all cores, one after the other; and, as ours are, batches of about
512 tokens side by side, one on each core. What is made once (graphs, calibration) is not timed.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.checkpoint.folder import load_folder

BATCH, TOKENS = 32, 512  # texts of a batch on all cores, tokens of one on a core
States = NDArray[np.float32]
Ids = list[list[int]]
Inputs = dict[str, NDArray[np.int64]]


class Peer:
    """Tokenise, sort, run batch by batch, pool, put back in order."""

    def __init__(
        self, model: Path, states: Callable[[Inputs], States], *, at_once: int = 1
    ) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(512)
        self.states, self.at_once = states, at_once

    def __call__(self, texts: Sequence[str]) -> States:
        """One vector per text."""
        read = self.ids(texts)
        order = sorted(range(len(texts)), key=lambda i: -len(read[i]))
        found = self.each([[read[i] for i in part] for part in self.parts(order, read)])
        out = np.empty((len(texts), found[0].shape[1]), np.float32)
        out[order] = np.concatenate(found)
        return out

    def ids(self, texts: Sequence[str]) -> Ids:
        """The tokens of each text."""
        return [text.ids for text in self.tokenizer.encode_batch_fast(list(texts))]

    def parts(self, order: Sequence[int], read: Ids) -> list[list[int]]:
        """Neighbours in length, the longest first."""
        parts: list[list[int]] = [[]]
        for i in order:
            longest = len(read[(parts[-1] or [i])[0]])
            most = TOKENS // longest if self.at_once > 1 else BATCH
            if len(parts[-1]) >= max(most, 1):
                parts.append([])
            parts[-1].append(i)
        return parts

    def each(self, parts: Sequence[Ids]) -> list[States]:
        """The vectors of each batch."""
        if self.at_once == 1:
            return [self.vectors(part) for part in parts]
        with ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(self.vectors, parts))

    def vectors(self, part: Ids) -> States:
        """The vectors of a batch."""
        inputs = padded(part)
        return pooled(self.states(inputs), inputs)


def pooled(states: States, inputs: Inputs) -> States:
    """The mean of each text, of length 1.  [B, S, D] -> [B, D]"""
    mask = inputs["attention_mask"][:, :, None].astype(np.float32)
    mean = (states * mask).sum(axis=1) / mask.sum(axis=1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def padded(some: Ids) -> Inputs:
    """Rows of one text each."""
    longest = max(map(len, some))
    ids = np.zeros((len(some), longest), np.int64)
    for row, text in zip(ids, some, strict=True):
        row[: len(text)] = text
    lengths = np.array([len(text) for text in some])
    mask = (np.arange(longest) < lengths[:, None]).astype(np.int64)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def sentence_transformers(model: Path, threads: int) -> Callable[[Sequence[str]], States]:
    """Its own loop, which sorts by itself."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    loaded = SentenceTransformer(str(model), device="cpu")
    return lambda texts: loaded.encode(list(texts), normalize_embeddings=True, batch_size=BATCH)


def onnx_runtime(model: Path, place: Path, threads: int, *, int8: bool, apart: bool) -> Peer:
    """The exported graph, its operators fused; dynamic int8 with a scale for each channel.

    Dynamic is what its own documentation advises for transformers.
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
                extra_options={"DefaultTensorType": 1},  # float, behind operators of its own
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
    """The exported graph; int8 by NNCF, calibrated on texts; apart, with a stream for each core."""
    import openvino as ov

    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads})
    if not int8:  # it would take bfloat16 where the processor has it
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
    """OpenVINO with as many batches at once as it has streams."""

    def __init__(self, model: Path, queue: Any, at_once: int) -> None:
        super().__init__(model, lambda inputs: np.empty(0), at_once=at_once)
        self.queue = queue

    def each(self, parts: Sequence[Ids]) -> list[States]:
        """All are begun; each is pooled when it is there."""
        found: list[States] = [np.empty(0)] * len(parts)

        def keep(request: Any, number: int) -> None:
            states = request.get_tensor("last_hidden_state").data
            found[number] = pooled(states, inputs[number])

        inputs = [padded(part) for part in parts]
        self.queue.set_callback(keep)
        for number, own in enumerate(inputs):
            self.queue.start_async(own, number)
        self.queue.wait_all()
        return found


def ctranslate2(model: Path, place: Path, threads: int, *, int8: bool, apart: bool) -> Peer:
    """Its own format and kernels."""
    import ctranslate2 as ct2

    folder = place / "ctranslate2"
    if not folder.exists():
        ct2.converters.TransformersConverter(str(model)).convert(str(folder))
    kind = "int8" if int8 else "float32"
    each, cores = (threads, 1) if apart else (1, threads)
    encoder = ct2.Encoder(str(folder), compute_type=kind, inter_threads=each, intra_threads=cores)

    def states(inputs: Inputs) -> States:
        lengths = inputs["attention_mask"].sum(axis=1)
        ids = [row[:n].tolist() for row, n in zip(inputs["input_ids"], lengths, strict=True)]
        return np.asarray(encoder.forward_batch(ids).last_hidden_state)

    return Peer(model, states, at_once=each)


def vnni() -> bool:
    """Has the processor instructions for int8? Without them weights need a bit of room."""
    return any(name in Path("/proc/cpuinfo").read_text() for name in ("avx512_vnni", "avx_vnni"))


def _exported(model: Path, place: Path) -> Path:
    """Their BertModel by torch's older exporter: only in its graphs is attention recognised."""
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
    """As onnxruntime's own tool for transformers fuses it, where it can."""
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
