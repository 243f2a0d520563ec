"""Hostile settings, vocabularies and manifests."""

import torch

from tests.faults.spoil import *

# name of the case: (how to spoil, the file that the message names, a part of the reason)
CONFIGS = {
    "missing": (removed(CONFIG), CONFIG, "need a model folder"),
    "a-folder": (folder_called(CONFIG), CONFIG, "need a model folder"),
    "link-to-itself": (link_called(CONFIG, CONFIG), CONFIG, "need a model folder"),
    "empty": (replaced(CONFIG, b""), CONFIG, "not valid JSON"),
    "not-json": (replaced(CONFIG, b"import os"), CONFIG, "not valid JSON"),
    "list": (replaced(CONFIG, b"[]"), CONFIG, "a list; need"),
    "50-MB": (sparse(CONFIG, 50 * MB), CONFIG, "larger than 16,777,216 bytes"),
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
        "'auto_map' asks to run the folder's own code",
    ),
    "trust-remote-code": (config(trust_remote_code=True), CONFIG, "'trust_remote_code' asks to"),
    "gpt2": (config(model_type="gpt2"), CONFIG, "model type 'gpt2'"),
    "roberta": (config(model_type="roberta"), CONFIG, "model type 'roberta'"),
    "model-type-missing": (without("model_type"), CONFIG, "'model_type' is missing"),
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
        "'id2label' must name exactly the labels 0 to 2",
    ),
    "labels-a-list": (
        labelled(torch.zeros(3, 16), id2label=["a", "b", "c"]),
        CONFIG,
        "'id2label' must name",
    ),
    "labels-from-one-number": (labelled(torch.tensor(1.0)), ANY, "'classifier.weight'"),
    "heads-a-list": (config(unmask_heads=[]), CONFIG, "'unmask_heads' is []; need a table"),
    "head-a-number": (config(unmask_heads={"a": 1}), CONFIG, "'unmask_heads.a' is 1; need a table"),
    "labels-of-a-head-a-number": (
        config(unmask_heads={"a": {"labels": "text", "label_names": 5}}),
        CONFIG,
        "[unmask_heads.a]: 'label_names' is 5; need a list",
    ),
    "layers-a-number": (
        labelled(torch.zeros(3, 16), unmask_layers=3),
        CONFIG,
        "'unmask_layers' is 3; input should be 'last' or 'weighted'; or need a list",
    ),
    "layer-9999": (
        labelled(torch.zeros(3, 16), unmask_layers=[9999]),
        CONFIG,
        "'unmask_layers.0' is 9999",
    ),
    "layer-5-of-2": (
        labelled(torch.zeros(3, 16), unmask_layers=[5]),
        CONFIG,
        "'labels' reads layer 5, but its encoder only has layers -3 to 2",
    ),
    "unmask-without-table": (
        config(model_type="unmask"),
        CONFIG,
        "but the table 'unmask' is missing",
    ),
    "unmask-with-a-key-of-100-kB": (own_config(**{"k" * 100_000: 1}), CONFIG, "unknown key"),
    "encoders-a-list": (config(model_type="unmask", unmask={"encoders": []}), CONFIG, "'encoders'"),
    "encoders-a-number": (config(model_type="unmask", unmask={"encoders": 1}), CONFIG, "need a"),
    "no-encoder": (shape(), CONFIG, "need one called 'main'"),
    "encoders-by-the-thousand": (shape(*[{}] * 1000), CONFIG, "'encoders' is "),
    "a-second-encoder-without-weights": (
        shape({}, {}, heads=PRETRAINING),
        ANY,
        "tensors are missing, the first is 'unmask.encoders.e1.",
    ),
    "encoders-that-borrow-in-a-circle": (
        shape({"borrows": "e1"}, {"borrows": "main"}),
        CONFIG,
        "borrows the token embeddings of 'e1', which",
    ),
    "layers-by-the-hundred-thousand": (
        shape({}, *[{"width": 2, "heads": 1, "inner_width": 1, "layers": 512}] * 63),
        CONFIG,
        "at most 1,024 are allowed",
    ),
    "waves-of-sixty-four-encoders": (
        shape(*[{"positions": "sinusoidal", "max_length": 2**16}] * 64),
        CONFIG,
        "position tables of 67,108,864 numbers",
    ),
    "decoders-of-five-hundred-layers": (
        shape(
            {},
            heads={f"d{n}": {"kind": "decoder", "vocab_size": 1, "layers": 512} for n in range(64)},
        ),
        CONFIG,
        "at most 1,024 are allowed",
    ),
    "heads-of-a-shape-a-list": (
        config(model_type="unmask", unmask={"encoders": {"main": OWN}, "heads": []}),
        CONFIG,
        "'heads' is []; need a table",
    ),
    "head-of-no-kind": (shape({}, heads={"a": {}}), CONFIG, "'heads.a' is {}; need a kind"),
    "head-of-a-kind-of-100-kB": (
        shape({}, heads={"a": {"kind": "k" * 100_000}}),
        CONFIG,
        "need a kind of 'pooler', ",
    ),
    # Any name will do, but the weights are of another network.
    "head-called-as-a-method": (
        shape({}, heads={"keys": {"kind": "pooler"}}),
        WEIGHTS,
        "has no place in the network that config.json describes",
    ),
    "head-called-as-a-flag": (
        shape({}, heads={"training": {"kind": "pooler"}}),
        CONFIG,
        "'training' is an attribute of every torch module; choose another name",
    ),
    "head-called-as-a-path": (
        shape({}, heads={"../../etc/x": {"kind": "pooler"}}),
        CONFIG,
        "'heads.../../etc/x' is '../../etc/x'; string should match",
    ),
    "vector-without-end": (
        shape({}, heads={"a": {"kind": "vector", "width": 2**40}}),
        CONFIG,
        "'heads.a.width' is 1099511627776",
    ),
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

TEXTS = {
    "vocab-without-unk": (vocab(lambda raw: raw.replace(b"[UNK]", b"unk")), VOCAB, "no [UNK]"),
    "vocab-repeated": (vocab(lambda raw: raw + b"cat\n"), VOCAB, "'cat' is already on line"),
    "vocab-not-utf8": (vocab(lambda raw: raw + b"caf\xe9\n"), f"{VOCAB}:24", "is not UTF-8 (0xe9)"),
    "vocab-blank-end": (vocab(lambda raw: raw + b"\n"), f"{VOCAB}:24", "a blank line at the end"),
    "vocab-empty": (vocab(lambda _: b""), VOCAB, "a blank line at the end"),
    "vocab-above-the-model": (vocab(lambda raw: raw + b"x\n"), "vocabulary", "has 24 tokens, but"),
    "vocab-disagreeing": (
        text_of(VOCAB, lambda raw: raw.replace(b"cat", b"cow")),
        VOCAB,
        "'cow' in vocab.txt and 'cat' in tokenizer.json",
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
        "need each number from 0 to 22 exactly once",
    ),
    "tokenizer-ids-of-text": (
        tokenizer(lambda table: table["model"]["vocab"].update(cat="7")),
        TOKENIZER,
        "need each number from 0 to 22 exactly once",
    ),
    "tokenizer-without-vocab": (
        tokenizer(lambda table: table["model"].pop("vocab")),
        TOKENIZER,
        "model.vocab is missing",
    ),
    "tokenizer-not-json": (replaced(TOKENIZER, b"\x80\x04."), TOKENIZER, "not valid JSON"),
    "tokenizer-half-a-character": (token("cat", "\ud800"), TOKENIZER, ANY),
    "tokenizer-token-of-two-lines": (token("cat", "c\nat"), TOKENIZER, ANY),
    "tokenizer-of-129-MB": (sparse(TOKENIZER, 129 * MB), TOKENIZER, "larger than"),
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
        "do_lower_case is 'yes'",
    ),
}

SEALED = {
    "changed-config": (
        text_of(CONFIG, lambda raw: raw.replace(b'"gelu"', b'"relu"')),
        CONFIG,
        "was changed since it was written",
    ),
    "not-json": (replaced(MANIFEST, b"{"), MANIFEST, "not valid JSON"),
    "own-digest": (replaced(MANIFEST, b'{"format": 1}'), MANIFEST, "its sha256 does not match"),
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
