"""Hostile weight files: headers that lie, tensors that do not fit, indices that lead elsewhere."""

import torch

from tests.faults.spoil import *

# name of the case: (how to spoil, the file that the message names, a part of the reason)
HEADERS = {
    "empty": (replaced(WEIGHTS, b""), WEIGHTS, "truncated or not a safetensors file"),
    "seven-bytes": (replaced(WEIGHTS, b"1234567"), WEIGHTS, "truncated or not a safetensors"),
    "length-2^63": (
        replaced(WEIGHTS, (2**63).to_bytes(8, "little") + b"{}"),
        WEIGHTS,
        "header of 9,223,372,036,854,775,808 bytes",
    ),
    "length-above-file": (
        replaced(WEIGHTS, b"\x10" + bytes(7) + b"{}"),
        WEIGHTS,
        "header of 16 bytes",
    ),
    "over-the-limit": (
        large_header(lambda: b"{" + b" " * MB + b"}"),
        WEIGHTS,
        "the header has 1,048,578 bytes",
    ),
    "100-MB": (
        sparse(WEIGHTS, 101 * MB, (100 * MB).to_bytes(8, "little") + b"{"),
        WEIGHTS,
        "the header has 104,857,600 bytes",
    ),
    "300k-empty-tensors": (
        large_header(lambda: many(300_000, ZEROS)),
        WEIGHTS,
        "unmask reads at most",
    ),
    "20k-tiny-tensors": (large_header(lambda: many(20_000, TINY)), WEIGHTS, "unmask reads at most"),
    "12k-tiny-tensors": (large_header(lambda: many(12_000, TINY)), WEIGHTS, "12,000 tensors"),
    "deep": (large_header(lambda: b'{"a":' * 100_000), WEIGHTS, "nested too deep"),
    "not-json": (header(b"{'a': 1}"), WEIGHTS, "not valid JSON"),
    "not-utf8": (header(b'{"\xff": 1}'), WEIGHTS, "not valid JSON"),
    "list": (header(b"[1, 2]"), WEIGHTS, "a list; need"),
    "nan": (header(b'{"a": NaN}'), WEIGHTS, "NaN is not a JSON number"),
    "overlap": (
        header({"a": f32(0, 4, 1), "b": f32(2, 6, 1)}, bytes(6)),
        WEIGHTS,
        "'b' overlaps the tensor before it",
    ),
    "hole": (
        header({"a": f32(0, 4, 1), "b": f32(8, 12, 1)}, bytes(12)),
        WEIGHTS,
        "'b' leaves a gap before it",
    ),
    "overflow": (
        entry(shape=[2**31, 2**31, 4], data_offsets=[0, 0]),
        WEIGHTS,
        "has 0 bytes, but shape",
    ),
    "zero-dimension": (entry(shape=[0, 2**60], data_offsets=[0, 0]), WEIGHTS, "out of range"),
    "five-dimensions": (entry(shape=[1, 1, 1, 1, 16]), WEIGHTS, "out of range"),
    "negative-shape": (entry(shape=[-16]), WEIGHTS, "are not valid sizes"),
    "float-shape": (entry(shape=[16.0]), WEIGHTS, "are not valid sizes"),
    "bool-shape": (entry(shape=[True, 16]), WEIGHTS, "are not valid sizes"),
    "shape-a-number": (entry(shape=16), WEIGHTS, "are not valid sizes"),
    "shape-null": (entry(shape=None), WEIGHTS, "are not valid sizes"),
    "offsets-null": (entry(data_offsets=None), WEIGHTS, "are not valid sizes"),
    "offsets-backwards": (entry(data_offsets=[64, 0]), WEIGHTS, "has -64 bytes, but shape"),
    "offsets-of-4000-digits": (entry(data_offsets=[0, 10**4000]), WEIGHTS, ENTRY),
    "offsets-missing": (header({"a": {"dtype": "F32", "shape": [1]}}), WEIGHTS, "need dtype"),
    "repeated-tensor": (
        header(b'{"a":%s,"a":%s}' % (TINY, TINY), bytes(2)),
        WEIGHTS,
        "the key 'a' is given twice",
    ),
    "repeated-after-90k": (
        large_header(lambda: many(90_000, b"0")[:-1] + b',"15f8f":0}'),
        WEIGHTS,
        "the key '15f8f' is given twice",
    ),
    "repeated-name-of-100-kB": (
        header(b'{"%s":0,"%s":0}' % (b"a" * 100_000, b"a" * 100_000)),
        WEIGHTS,
        "is given twice",
    ),
    "unknown-type": (entry(dtype="F8_E4M3"), WEIGHTS, "type 'F8_E4M3'"),
    "type-a-list": (entry(dtype=["F32"]), WEIGHTS, "type ['F32']"),
    "name-a-path": (renamed("../../etc/x"), WEIGHTS, "invalid name"),
    "name-with-terminal-codes": (renamed("a\x1b[2J\nok"), WEIGHTS, "invalid name"),
    "metadata-a-list": (
        header_change(lambda table: table.update(__metadata__=[1])),
        WEIGHTS,
        "cannot be read",
    ),
    "bytes-appended": (text_of(WEIGHTS, lambda raw: raw + b"\0"), WEIGHTS, "data was appended"),
    "cut-by-one-byte": (text_of(WEIGHTS, lambda raw: raw[:-1]), WEIGHTS, "it was truncated"),
    "cut-in-the-header": (text_of(WEIGHTS, lambda raw: raw[:100]), WEIGHTS, "truncated"),
}

TENSORS = {
    "nan": (poisoned(float("nan")), WEIGHTS, f"tensor '{ENTRY}' contains NaN or infinity"),
    "infinity": (poisoned(float("-inf")), WEIGHTS, f"tensor '{ENTRY}' contains NaN or infinity"),
    "wrong-shape": (
        tensor(ENTRY, lambda _: torch.zeros(4, 4)),
        WEIGHTS,
        f"tensor '{ENTRY}' has shape [4, 4]; config.json implies [16]",
    ),
    "missing": (
        tensors(lambda table: table.pop(ENTRY)),
        "config.json",
        f"1 of 46 tensors are missing, the first is '{ENTRY}'",
    ),
    "extra": (tensor("bert.extra", lambda _: torch.zeros(1)), WEIGHTS, "'bert.extra' [1] has no"),
    "layer-too-many": (config(num_hidden_layers=1), WEIGHTS, "bert.encoder.layer.1."),
    "integers": (tensor(ENTRY, lambda t: t[ENTRY].long()), WEIGHTS, f"'{ENTRY}' is I64"),
    "doubles": (tensor(ENTRY, lambda t: t[ENTRY].double()), WEIGHTS, "type 'F64'"),
    "untied-decoder": (
        tensor(DECODER, lambda t: t[EMBEDDINGS] + 1),
        WEIGHTS,
        f"'{DECODER}' differs from '{EMBEDDINGS}'",
    ),
    "untied-decoder-in-another-shard": (
        decoder_in_another_shard,
        "part-2.safetensors",
        f"'{DECODER}' differs from '{EMBEDDINGS}'",
    ),
    "old-and-new-name": (
        tensor("bert.embeddings.LayerNorm.gamma", lambda _: torch.zeros(16)),
        WEIGHTS,
        "occurs twice",
    ),
    "pickle-renamed": (hidden_command, WEIGHTS, "not a safetensors file"),
    "pickle-only": (pickle_only, PICKLED, "unmask convert"),
    "none": (removed(WEIGHTS), WEIGHTS, "need the weights of a model"),
    "a-folder": (folder_called(WEIGHTS), WEIGHTS, "need the weights of a model"),
    "a-pipe": (pipe_called(WEIGHTS), WEIGHTS, "need the weights of a model"),
}

INDICES = {
    "upwards": (index({"a": "../part-1.safetensors"}), INDEX, "'../part-1.safetensors' is not a"),
    "http": (index({"a": "http://x.org/a.safetensors"}), INDEX, "'http://x.org/a.safetensors' is"),
    "absolute": (index({"a": "/etc/a.safetensors"}), INDEX, "is not a plain file name"),
    "a-number": (index({"a": 7}), INDEX, "'7' is not a plain file name"),
    "missing-shard": (index({"a": "part-2.safetensors"}), "part-2.safetensors", "is missing"),
    "empty": (index({}), INDEX, "no 'weight_map'"),
    "a-list": (index(["part-1.safetensors"]), INDEX, "no 'weight_map'"),
}
