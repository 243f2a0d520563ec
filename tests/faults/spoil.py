"""Ways to spoil a model folder, and what a refusal must be like: quick, short, harmless."""

import contextlib
import hashlib
import io
import json
import os
import resource
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from unmask.system.errors import UserError

MB = 2**20
WEIGHTS, PICKLED, CANARY = "model.safetensors", "pytorch_model.bin", "canary"
INDEX = f"{WEIGHTS}.index.json"
CONFIG = "config.json"
VOCAB, TOKENIZER = "vocab.txt", "tokenizer.json"
MANIFEST = "unmask.json"
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
    """Bytes, then a hole up to a size: large to a reader, nothing on the disk."""

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


# The heads of the good folder.
PRETRAINING = {
    "pooler": {"kind": "pooler"},
    "tokens": {"kind": "tokens"},
    "pair": {"kind": "labels", "names": ["follows", "differs"]},
}


def shape(*encoders, heads=None):
    """Model type "unmask", whose table has a whole network: the first encoder is the main one."""
    tables = {
        f"e{n}" if n else "main": {**OWN, "max_length": 32, **changes}
        for n, changes in enumerate(encoders)
    }
    return config(model_type="unmask", unmask={"encoders": tables, "heads": heads or {}})


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
    """A process that opens it for reading waits for a writer, for ever."""
    return removed(name, lambda folder: os.mkfifo(folder / name))


def link_called(name, target):
    return removed(name, lambda folder: (folder / name).symlink_to(target))


def with_code(folder):
    """The file that auto_map points to."""
    (folder / "evil.py").write_text(f"open({str(folder.parent / CANARY)!r}, 'w')\n")


def many(count, value):
    """A header with this many entries, as small as they can be."""
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


@contextlib.contextmanager
def bounded():
    """Watch the memory of a block, and keep a bug in unmask from using all of the machine's."""
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
