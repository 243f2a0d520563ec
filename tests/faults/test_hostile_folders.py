"""Model folders made by an enemy or by an accident: refused by name, at once, and nothing is run.

Each case spoils a small good folder. A table says which file the refusal must name and a part of
the reason that it must give.
"""

import contextlib
import hashlib
import io
import json
import os
import pickle
import resource
import shutil
import time
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import tiny_network
from unmask.checkpoint.convert import convert
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.errors import UserError
from unmask.model.config import HeadsConfig

MB = 2**20
WEIGHTS, PICKLED, CANARY = "model.safetensors", "pytorch_model.bin", "canary"
SECONDS = 2  # to refuse a folder
CHILD_SECONDS = 10  # with a child: it imports torch, which takes 2 to 3 s of a quiet machine
MEMORY = 200 * MB  # above what the process has
CHILD_MEMORY = 1024 * MB  # of a child in all: torch needs a third of it
ENTRY = "bert.pooler.dense.bias"  # 16 numbers of F32, the tensor that most headers lie about
EMBEDDINGS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
ANY = ""  # any wording will do, as long as the file is named
OWN = {"vocab_size": 23, "width": 16, "layers": 2, "heads": 2, "inner_width": 32}


# How to spoil a folder: each returns a function of the folder.


def text_of(name, change):
    """Change a file as bytes."""

    def spoil(folder):
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return spoil


def replaced(name, raw):
    return text_of(name, lambda _: raw)


def sparse(name, size, raw=b""):
    """Bytes, then a hole up to a size: large to whoever reads it, nothing on the disk."""

    def spoil(folder):
        (folder / name).write_bytes(raw)
        os.truncate(folder / name, size)

    return spoil


def removed(name, *then):
    def spoil(folder):
        (folder / name).unlink()
        for part in then:
            part(folder)

    return spoil


def both(*parts):
    def spoil(folder):
        for part in parts:
            part(folder)

    return spoil


def table_of(name, change):
    """Change a JSON file as a table; `change` works in place."""

    def edited(raw):
        table = json.loads(raw)
        change(table)
        return json.dumps(table).encode()

    return text_of(name, edited)


def config(**changes):
    return table_of("config.json", lambda table: table.update(changes))


def without(*keys):
    return table_of("config.json", lambda table: [table.pop(key) for key in keys])


def own_config(**changes):
    """Model type "unmask", whose table has our names."""
    return config(model_type="unmask", unmask={**OWN, "max_length": 32, **changes})


def as_file(header, body=b""):
    """A safetensors file, well formed or not."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + body


def header(table, body=b""):
    return replaced(WEIGHTS, as_file(table, body))


def large_header(make):
    """As `header`, made only when its case runs."""
    return text_of(WEIGHTS, lambda _: as_file(make()))


def split(raw):
    """A safetensors file -> its header and the rest."""
    end = 8 + int.from_bytes(raw[:8], "little")
    return json.loads(raw[8:end]), raw[end:]


def header_change(change):
    def edited(raw):
        table, body = split(raw)
        change(table)
        return as_file(table, body)

    return text_of(WEIGHTS, edited)


def entry(**changes):
    return header_change(lambda table: table[ENTRY].update(changes))


def renamed(name):
    return header_change(lambda table: table.update({name: table.pop(ENTRY)}))


def f32(begin, end, *shape):
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}


def tensors(change):
    """Change the weights, in place, and write a file that is well formed."""

    def spoil(folder):
        table = load_file(folder / WEIGHTS)
        change(table)
        save_file(table, folder / WEIGHTS, metadata={"format": "pt"})

    return spoil


def tensor(name, make):
    """Put one tensor, made from the table of all."""
    return tensors(lambda table: table.update({name: make(table)}))


def poisoned(value):
    def change(table):
        table[ENTRY][7] = value

    return tensors(change)


def index(weight_map):
    """Shards in place of one file: the good weights are in part-1.safetensors."""

    def spoil(folder):
        (folder / WEIGHTS).rename(folder / "part-1.safetensors")
        text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (folder / f"{WEIGHTS}.index.json").write_text(text)

    return spoil


def decoder_in_another_shard(folder):
    table = load_file(folder / WEIGHTS)
    index({"a": "part-1.safetensors", "b": "part-2.safetensors"})(folder)
    save_file({DECODER: table[EMBEDDINGS] + 1}, folder / "part-2.safetensors")


def labelled(weight, **changes):
    """A head for three labels that the config may or may not agree with."""
    changes = {"architectures": ["BertForSequenceClassification"], **changes}
    return both(tensor("classifier.weight", lambda _: weight), config(**changes))


def vocab(change):
    return removed("tokenizer.json", text_of("vocab.txt", change))


def tokenizer(change):
    return removed("vocab.txt", table_of("tokenizer.json", change))


def token(old, new):
    def change(table):
        table["model"]["vocab"][new] = table["model"]["vocab"].pop(old)

    return tokenizer(change)


def manifest(change):
    """Forge unmask.json: its own digest is right, what it says is not."""

    def edited(raw):
        table = json.loads(raw)
        del table["sha256"]
        change(table)
        canonical = json.dumps(table, sort_keys=True).encode()
        table["sha256"] = hashlib.sha256(canonical).hexdigest()
        text = json.dumps(table, indent=2, ensure_ascii=False) + "\n"
        return text.encode("utf-8", "surrogatepass")

    return text_of("unmask.json", edited)


def folder_called(name):
    return removed(name, lambda folder: (folder / name).mkdir())


def pipe_called(name):
    """Whoever opens it for reading waits for a writer, for ever."""
    return removed(name, lambda folder: os.mkfifo(folder / name))


def link_called(name, target):
    return removed(name, lambda folder: (folder / name).symlink_to(target))


def with_code(folder):
    """The file that auto_map points to."""
    (folder / "evil.py").write_text(f"open({str(folder.parent / CANARY)!r}, 'w')\n")


def many(count, value):
    """A header of so many entries, as small as they can be."""
    return b"{" + b",".join(b'"%x":%s' % (i, value) for i in range(count)) + b"}"


class Command:
    """Unpickling it with pickle.load would create the canary."""

    def __init__(self, folder, call=os.system):
        canary = folder.parent / CANARY
        self.plan = (
            call,
            (f"touch {canary}" if call is os.system else f"open({str(canary)!r},'w')",),
        )

    def __reduce__(self):
        return self.plan


def saved(value, **how):
    file = io.BytesIO()
    torch.save(value, file, **how)
    return file.getvalue()


def hidden_command(folder):
    """The weights renamed: a pickle that runs a command, where safetensors are expected."""
    (folder / WEIGHTS).write_bytes(saved({"a": Command(folder)}))


def pickle_only(folder):
    torch.save(load_file(folder / WEIGHTS), folder / PICKLED)
    (folder / WEIGHTS).unlink()


ZEROS = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
TINY = b'{"dtype":"F16","shape":[1],"data_offsets":[0,2]}'
GIANT = {"x": {"dtype": "F16", "shape": [5_000_000], "data_offsets": [0, 10_000_000]}}

# name of the case: (how to spoil, the file that the message names, a part of the reason)
HEADERS = {
    "empty": (replaced(WEIGHTS, b""), WEIGHTS, "cut off or no safetensors file"),
    "seven-bytes": (replaced(WEIGHTS, b"1234567"), WEIGHTS, "cut off or no safetensors"),
    "length-2^63": (
        replaced(WEIGHTS, (2**63).to_bytes(8, "little") + b"{}"),
        WEIGHTS,
        "header has 9,223,372,036,854,775,808 bytes",
    ),
    "length-above-file": (replaced(WEIGHTS, b"\x10" + bytes(7) + b"{}"), WEIGHTS, "has 16 bytes"),
    "over-the-limit": (
        large_header(lambda: b"{" + b" " * MB + b"}"),
        WEIGHTS,
        "a header of 1,048,578 bytes",
    ),
    "100-MB": (
        sparse(WEIGHTS, 101 * MB, (100 * MB).to_bytes(8, "little") + b"{"),
        WEIGHTS,
        "a header of 104,857,600 bytes",
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
        "'b' overlaps the one before it",
    ),
    "hole": (
        header({"a": f32(0, 4, 1), "b": f32(8, 12, 1)}, bytes(12)),
        WEIGHTS,
        "'b' leaves a hole before it",
    ),
    "overflow": (entry(shape=[2**31, 2**31, 4], data_offsets=[0, 0]), WEIGHTS, "0 bytes for shape"),
    "zero-dimension": (entry(shape=[0, 2**60], data_offsets=[0, 0]), WEIGHTS, "out of bounds"),
    "five-dimensions": (entry(shape=[1, 1, 1, 1, 16]), WEIGHTS, "out of bounds"),
    "negative-shape": (entry(shape=[-16]), WEIGHTS, "are no sizes"),
    "float-shape": (entry(shape=[16.0]), WEIGHTS, "are no sizes"),
    "bool-shape": (entry(shape=[True, 16]), WEIGHTS, "are no sizes"),
    "shape-a-number": (entry(shape=16), WEIGHTS, "are no sizes"),
    "shape-null": (entry(shape=None), WEIGHTS, "are no sizes"),
    "offsets-null": (entry(data_offsets=None), WEIGHTS, "are no sizes"),
    "offsets-backwards": (entry(data_offsets=[64, 0]), WEIGHTS, "-64 bytes for shape"),
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
    "name-a-path": (renamed("../../etc/x"), WEIGHTS, "a strange name"),
    "name-with-terminal-codes": (renamed("a\x1b[2J\nok"), WEIGHTS, "a strange name"),
    "metadata-a-list": (
        header_change(lambda table: table.update(__metadata__=[1])),
        WEIGHTS,
        "cannot be read",
    ),
    "bytes-appended": (text_of(WEIGHTS, lambda raw: raw + b"\0"), WEIGHTS, "something was added"),
    "cut-by-one-byte": (text_of(WEIGHTS, lambda raw: raw[:-1]), WEIGHTS, "it was cut off"),
    "cut-in-the-header": (text_of(WEIGHTS, lambda raw: raw[:100]), WEIGHTS, "cut off"),
}

TENSORS = {
    "nan": (poisoned(float("nan")), WEIGHTS, f"tensor '{ENTRY}' holds NaN or infinity"),
    "infinity": (poisoned(float("-inf")), WEIGHTS, f"tensor '{ENTRY}' holds NaN or infinity"),
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
    "doubles": (tensor(ENTRY, lambda t: t[ENTRY].double()), WEIGHTS, f"'{ENTRY}' is F64"),
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
        "is there twice",
    ),
    "pickle-renamed": (hidden_command, WEIGHTS, "no safetensors file"),
    "pickle-only": (pickle_only, PICKLED, "unmask convert"),
    "none": (removed(WEIGHTS), WEIGHTS, "need the weights of a model"),
    "a-folder": (folder_called(WEIGHTS), WEIGHTS, "need the weights of a model"),
    "a-pipe": (pipe_called(WEIGHTS), WEIGHTS, "need the weights of a model"),
}

INDEX = f"{WEIGHTS}.index.json"
INDICES = {
    "upwards": (index({"a": "../part-1.safetensors"}), INDEX, "'../part-1.safetensors' is not a"),
    "http": (index({"a": "http://x.org/a.safetensors"}), INDEX, "'http://x.org/a.safetensors' is"),
    "absolute": (index({"a": "/etc/a.safetensors"}), INDEX, "is not a plain name in this folder"),
    "a-number": (index({"a": 7}), INDEX, "'7' is not a plain name"),
    "missing-shard": (index({"a": "part-2.safetensors"}), "part-2.safetensors", "is missing"),
    "empty": (index({}), INDEX, "no 'weight_map'"),
    "a-list": (index(["part-1.safetensors"]), INDEX, "no 'weight_map'"),
}

CONFIG = "config.json"
CONFIGS = {
    "missing": (removed(CONFIG), CONFIG, "need the folder of a model"),
    "a-folder": (folder_called(CONFIG), CONFIG, "need the folder of a model"),
    "link-to-itself": (link_called(CONFIG, CONFIG), CONFIG, "need the folder of a model"),
    "empty": (replaced(CONFIG, b""), CONFIG, "not valid JSON"),
    "not-json": (replaced(CONFIG, b"import os"), CONFIG, "not valid JSON"),
    "list": (replaced(CONFIG, b"[]"), CONFIG, "a list; need"),
    "50-MB": (sparse(CONFIG, 50 * MB), CONFIG, "over 1,048,576 bytes"),
    "nan": (config(layer_norm_eps=float("nan")), CONFIG, "NaN is not a JSON number"),
    "5000-digits": (replaced(CONFIG, b'{"a":1%s}' % (b"0" * 5000)), CONFIG, "not valid JSON"),
    "deep": (replaced(CONFIG, b"[" * 500_000), CONFIG, "nested too deep"),
    "repeated-key": (replaced(CONFIG, b'{"a":1,"a":2}'), CONFIG, "the key 'a' is given twice"),
    "vocabulary-10^12": (config(vocab_size=10**12), CONFIG, "'vocab_size' is 1000000000000"),
    "vocabulary-above-weights": (config(vocab_size=2**22), CONFIG, "implies 67,"),
    "layers-10^9": (config(num_hidden_layers=10**9), CONFIG, "'num_hidden_layers' is 1000000000"),
    "heads-0": (config(num_attention_heads=0), CONFIG, "'num_attention_heads' is 0"),
    "heads-not-dividing": (config(num_attention_heads=3), CONFIG, "not a multiple of heads 3"),
    "width-negative": (config(hidden_size=-16), CONFIG, "'hidden_size' is -16"),
    "width-float": (config(hidden_size=16.0), CONFIG, "'hidden_size' is 16.0"),
    "width-string": (config(hidden_size="16"), CONFIG, "'hidden_size' is '16'"),
    "width-null": (config(hidden_size=None), CONFIG, "'hidden_size' is None"),
    "width-missing": (without("hidden_size"), CONFIG, "'hidden_size' is missing"),
    "width-4000-digits": (config(hidden_size=10**4000), CONFIG, "'hidden_size' is 1000"),
    "layers-bool": (config(num_hidden_layers=True), CONFIG, "'num_hidden_layers' is True"),
    "dropout-1": (config(hidden_dropout_prob=1.0), CONFIG, "'hidden_dropout_prob' is 1.0"),
    "auto-map": (
        both(with_code, config(auto_map={"AutoModel": "evil.Model"})),
        CONFIG,
        "'auto_map' asks to run code",
    ),
    "trust-remote-code": (config(trust_remote_code=True), CONFIG, "'trust_remote_code' asks to"),
    "gpt2": (config(model_type="gpt2"), CONFIG, "model type 'gpt2'"),
    "roberta": (config(model_type="roberta"), CONFIG, "model type 'roberta'"),
    "model-type-missing": (without("model_type"), CONFIG, "model type None"),
    "model-type-a-list": (config(model_type=["bert"]), CONFIG, "model type ['bert']"),
    "unknown-activation": (config(hidden_act="exec"), CONFIG, "unknown hidden_act 'exec'"),
    "activation-a-list": (config(hidden_act=["gelu"]), CONFIG, "hidden_act"),
    "activation-with-terminal-codes": (config(hidden_act="\x1b[2J\n"), CONFIG, "hidden_act"),
    "relative-positions": (
        config(position_embedding_type="relative_key"),
        CONFIG,
        "'position_embedding_type' is 'relative_key'",
    ),
    "cross-attention": (config(add_cross_attention=True), CONFIG, "'add_cross_attention' is True"),
    "unknown-architecture": (config(architectures=["Evil"]), CONFIG, "unknown architecture 'Evil'"),
    "head-without-weights": (
        config(architectures=["BertForTokenClassification"]),
        CONFIG,
        "there is no tensor 'classifier.weight'",
    ),
    "labels-not-matching": (
        labelled(torch.zeros(3, 16), id2label={"0": "a", "1": "b"}),
        CONFIG,
        "'id2label' does not name the labels 0 to 2",
    ),
    "labels-a-list": (
        labelled(torch.zeros(3, 16), id2label=["a", "b", "c"]),
        CONFIG,
        "'id2label' does not name",
    ),
    "labels-from-one-number": (labelled(torch.tensor(1.0)), ANY, "'classifier.weight'"),
    "unmask-without-table": (config(model_type="unmask"), CONFIG, "without its table 'unmask'"),
    "unmask-with-a-key-of-100-kB": (own_config(**{"k" * 100_000: 1}), CONFIG, "unknown key"),
    "infinite-base": (
        both(
            tensors(lambda table: table.pop("bert.embeddings.position_embeddings.weight")),
            own_config(positions="rotary", rotary_base=1e300),
            text_of(CONFIG, lambda raw: raw.replace(b"1e+300", b"1e999")),
        ),
        CONFIG,
        "'rotary_base' is inf",
    ),
    # Waves are computed, not stored: no weights limit their table, here of 131,072 x 1,024.
    "waves-of-a-gigabyte": (
        both(
            sparse(WEIGHTS, len(as_file(GIANT)) + 10_000_000, as_file(GIANT)),
            own_config(
                width=1024,
                layers=1,
                heads=1,
                inner_width=1,
                max_length=2**17,
                positions="sinusoidal",
            ),
        ),
        ANY,
        ANY,
    ),
}

VOCAB, TOKENIZER = "vocab.txt", "tokenizer.json"
TEXTS = {
    "vocab-without-unk": (vocab(lambda raw: raw.replace(b"[UNK]", b"unk")), VOCAB, "no [UNK]"),
    "vocab-repeated": (vocab(lambda raw: raw + b"cat\n"), VOCAB, "'cat' is already on line"),
    "vocab-not-utf8": (vocab(lambda raw: raw + b"caf\xe9\n"), f"{VOCAB}:24", "is not UTF-8 (0xe9)"),
    "vocab-blank-end": (vocab(lambda raw: raw + b"\n"), f"{VOCAB}:24", "a blank line at the end"),
    "vocab-empty": (vocab(lambda _: b""), VOCAB, "a blank line at the end"),
    "vocab-above-the-model": (vocab(lambda raw: raw + b"x\n"), "vocabulary", "has 24 tokens and"),
    "vocab-disagreeing": (
        text_of(VOCAB, lambda raw: raw.replace(b"cat", b"cow")),
        VOCAB,
        "'cow' here and 'cat' there",
    ),
    "vocab-of-65-MB": (sparse(VOCAB, 65 * MB), VOCAB, "a vocabulary has at most"),
    "vocab-of-60-MB-of-blank-lines": (vocab(lambda _: b"\n" * 60 * MB), VOCAB, "vocabulary"),
    "vocab-a-folder": (folder_called(VOCAB), VOCAB, ANY),
    "vocab-a-pipe": (pipe_called(VOCAB), VOCAB, ANY),
    "vocab-without-end": (link_called(VOCAB, "/dev/zero"), VOCAB, ANY),
    "tokenizer-with-regex": (
        tokenizer(
            lambda table: table.update(
                normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
            )
        ),
        TOKENIZER,
        "its normalizer is 'Replace'",
    ),
    "tokenizer-with-split": (
        tokenizer(lambda table: table.update(pre_tokenizer={"type": "Split"})),
        TOKENIZER,
        "its pre_tokenizer is 'Split'",
    ),
    "tokenizer-bpe": (
        tokenizer(lambda table: table["model"].update(type="BPE")),
        TOKENIZER,
        "its model is 'BPE'",
    ),
    "tokenizer-hole": (
        tokenizer(lambda table: table["model"]["vocab"].update(cat=99)),
        TOKENIZER,
        "the ids of 23 tokens are not 0 to 22",
    ),
    "tokenizer-ids-of-text": (
        tokenizer(lambda table: table["model"]["vocab"].update(cat="7")),
        TOKENIZER,
        "the ids of 23 tokens are not 0 to 22",
    ),
    "tokenizer-without-vocab": (
        tokenizer(lambda table: table["model"].pop("vocab")),
        TOKENIZER,
        "model.vocab is missing",
    ),
    "tokenizer-not-json": (replaced(TOKENIZER, b"\x80\x04."), TOKENIZER, "not valid JSON"),
    "tokenizer-half-a-character": (token("cat", "\ud800"), TOKENIZER, ANY),
    "tokenizer-token-of-two-lines": (token("cat", "c\nat"), TOKENIZER, ANY),
    "tokenizer-of-129-MB": (sparse(TOKENIZER, 129 * MB), TOKENIZER, "over"),
    "tokenizer-of-60-MB-of-lists": (
        text_of(TOKENIZER, lambda _: b'{"a":[' + b"[]," * 20 * MB + b"[]]}"),
        TOKENIZER,
        ANY,
    ),
    "tokenizer-a-folder": (folder_called(TOKENIZER), TOKENIZER, "cannot be read"),
    "tokenizer-a-pipe": (pipe_called(TOKENIZER), TOKENIZER, ANY),
    "casing-of-text": (
        removed(TOKENIZER, replaced("tokenizer_config.json", b'{"do_lower_case": "yes"}')),
        "tokenizer_config.json",
        "lower-casing is 'yes'",
    ),
}

MANIFEST = "unmask.json"
SEALED = {
    "changed-config": (
        text_of(CONFIG, lambda raw: raw.replace(b'"gelu"', b'"relu"')),
        CONFIG,
        "was changed since it was written",
    ),
    "not-json": (replaced(MANIFEST, b"{"), MANIFEST, "not valid JSON"),
    "own-digest": (replaced(MANIFEST, b'{"format": 1}'), MANIFEST, "its own sha256 differs"),
    "format-2": (manifest(lambda table: table.update(format=2)), MANIFEST, "format 2"),
    "no-files": (manifest(lambda table: table.pop("files")), MANIFEST, ANY),
    "files-a-list": (manifest(lambda table: table.update(files=[CONFIG])), MANIFEST, ANY),
    "entry-a-number": (manifest(lambda table: table["files"].update({CONFIG: 1})), MANIFEST, ANY),
    "entry-empty": (manifest(lambda t: t["files"].update({CONFIG: {}})), MANIFEST, ANY),
    "file-outside": (
        manifest(lambda t: t["files"].update({"../secret": {"bytes": 1, "sha256": ""}})),
        MANIFEST,
        "../secret",
    ),
    "a-pipe": (pipe_called(MANIFEST), MANIFEST, ANY),
}

TABLES = {
    "header": HEADERS,
    "tensor": TENSORS,
    "index": INDICES,
    "config": CONFIGS,
    "text": TEXTS,
    "manifest": SEALED,
}
CASES = [
    pytest.param(*case, id=f"{group}-{name}")
    for group, table in TABLES.items()
    for name, case in table.items()
]


@pytest.fixture(scope="module")
def good(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("good") / "model"
    save_folder(path, tiny_network(HeadsConfig(tokens=True, pair=True)), tokenizer)
    return path


@pytest.fixture
def sealed(good, tmp_path):
    """A copy of the good folder, with its manifest."""
    (tmp_path / "secret").write_text("of somebody else")
    return shutil.copytree(good, tmp_path / "model")


@pytest.fixture
def folder(sealed):
    """A copy without its manifest, whose digests would hide everything that is checked later."""
    (sealed / MANIFEST).unlink()
    return sealed


@contextlib.contextmanager
def bounded():
    """Watch the memory of a block, and keep a fault of ours from eating the machine's."""
    if not Path("/proc/self/clear_refs").exists():  # only Linux can tell
        yield
        return
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limits = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 1024 * MB, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < MEMORY, f"took {grown // 1024} MB more"


def refusal(read, folder, *, within):
    """The message of a refusal that was quick, short, of one line, and ran nothing."""
    begun = time.perf_counter()
    with pytest.raises(UserError) as refused:
        read()
    seconds = time.perf_counter() - begun
    message = str(refused.value)
    assert message.startswith(str(folder))
    assert message.isprintable()
    assert len(message) < 700 + len(str(folder))
    assert seconds < within
    assert not (folder.parent / CANARY).exists()
    return message


@pytest.mark.timeout(8, func_only=True)
@pytest.mark.parametrize(("spoil", "file", "reason"), CASES)
def test_a_hostile_folder_is_refused_by_name_at_once_in_little_memory(
    request, sealed, spoil, file, reason
):
    if "manifest-" not in request.node.callspec.id:
        (sealed / MANIFEST).unlink()
    spoil(sealed)
    with bounded():
        message = refusal(lambda: load_folder(sealed), sealed, within=SECONDS)
    assert file in message
    assert reason in message


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
        "tensor 'a' is not laid out plainly",
    ),
    "storage-of-400-GB": (storage_of_400_GB, "400000000000 bytes"),
    "cut-off": (lambda f: saved({"a": torch.zeros(9)})[:-30], "refused"),
    "40k-members": (archive(*((f"a/{i}", 0) for i in range(40_000))), ANY),
    "type-of-another-model": (zipped(lambda _: {"a": torch.zeros(3, dtype=torch.int8)}), "'a'"),
}
ZIPS = {  # refused from the zip's directory, without a child
    "repeated": (archive(("a/data.pkl", 1), ("a/data.pkl", 1)), "is repeated"),
    "repeated-in-capitals": (archive(("a/data.pkl", 1), ("a/DATA.pkl", 1)), "is repeated"),
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


ODD_VALUES = [None, True, -1, 1.5, "\ud800", [], [[]], {"a": 1}]
# file: (what takes its place if it is there, the parts of it that are read)
READ = {
    CONFIG: (None, None),
    TOKENIZER: (VOCAB, ("added_tokens", "normalizer", "pre_tokenizer", "model")),
    "tokenizer_config.json": (TOKENIZER, None),
    WEIGHTS: (None, (ENTRY, "__metadata__")),
    MANIFEST: (None, None),
}


def places(node, at=()):
    """The places in a JSON value, as the keys that lead to them, three deep."""
    for key in list(node)[:6] if at else node:
        child = node[key]
        yield (*at, key)
        if isinstance(child, list) and child:
            yield (*at, key, 0)
        elif isinstance(child, dict) and len(at) < 2:
            yield from places(child, (*at, key))


@pytest.mark.parametrize("name", READ)
def test_any_value_of_another_kind_is_harmless_or_refused(sealed, name):
    instead, parts = READ[name]
    for other in {MANIFEST, instead} - {name, None}:
        (sealed / other).unlink()
    raw = (sealed / name).read_bytes()
    table, body = split(raw) if name == WEIGHTS else (json.loads(raw), b"")
    for *way, last in [at for at in places(table) if parts is None or at[0] in parts]:
        node = table
        for key in way:
            node = node[key]
        original = node[last]
        for value in ODD_VALUES:
            node[last] = value
            text = json.dumps(table).encode()
            (sealed / name).write_bytes(as_file(text, body) if name == WEIGHTS else text)
            if name == MANIFEST:
                manifest(lambda _: None)(sealed)
            with contextlib.suppress(UserError):
                load_folder(sealed)
        node[last] = original
