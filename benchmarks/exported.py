"""Translation Transformer -> CTranslate2's format, so that both translate with the same weights."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from unmask.model.attention import Attention
from unmask.model.block import Block
from unmask.model.decoding.decoder import Decoder
from unmask.model.network import Network
from unmask.model.shape import DECODER
from unmask.text.tokens import Tokenizers


def export_to_ctranslate2(network: Network, words: Tokenizers, folder: Path) -> None:
    """Write a network of the recipe `transformer` to a folder, replacing it.

    Needs pre-norm, ReLU and sinusoidal positions.
    """
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation

    config, decoder = network.config, network.head(DECODER, Decoder)
    assert words.target is not None
    assert (config.norm, config.activation, config.positions) == ("pre", "relu", "sinusoidal")
    spec = TransformerSpec.from_config(
        (config.layers, len(decoder.blocks)),
        config.heads,
        pre_norm=True,
        activation=Activation.RELU,
        layernorm_embedding=True,
    )
    encoder, embeddings = network.encoder, network.encoder.embeddings
    # unmask's scale of the embeddings is already in the tables that are written.
    spec.encoder.scale_embeddings = False
    spec.decoder.scale_embeddings = False
    table = embeddings.positions.scaled(embeddings.table) + embeddings.segments.weight[0]
    spec.encoder.embeddings[0].weight = _array(table)  # every source is in segment 0
    _norm(spec.encoder.layernorm_embedding, embeddings.norm)
    spec.encoder.position_encodings.encodings = _array(embeddings.positions.table)
    _norm(spec.encoder.layer_norm, encoder.last_norm)
    for theirs, block in zip(spec.encoder.layer, encoder.blocks, strict=True):
        _block(theirs, block)
    spec.decoder.embeddings.weight = _array(decoder.positions.scaled(network.words()))
    _norm(spec.decoder.layernorm_embedding, decoder.norm)
    spec.decoder.position_encodings.encodings = _array(decoder.positions.table)
    _norm(spec.decoder.layer_norm, decoder.last_norm)
    for theirs, block in zip(spec.decoder.layer, decoder.blocks, strict=True):
        _block(theirs, block)
    spec.decoder.projection.weight = _array(network.words())
    spec.decoder.projection.bias = _array(decoder.bias)
    spec.register_source_vocabulary(list(words.source.vocabulary.tokens))
    spec.register_target_vocabulary(list(words.target.vocabulary.tokens))
    spec.config.bos_token = spec.config.decoder_start_token = "[CLS]"
    spec.config.eos_token, spec.config.unk_token = "[SEP]", "[UNK]"
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    spec.save(str(folder))


def _block(theirs: Any, block: Block) -> None:
    width = block.attention.output.in_features
    _norm(theirs.self_attention.layer_norm, block.attention_norm)
    joined = block.attention.qkv
    _linear(theirs.self_attention.linear[0], joined.weight, joined.bias)
    _attention_end(theirs.self_attention, block.attention)
    if block.cross is not None and block.cross_norm is not None:
        _norm(theirs.attention.layer_norm, block.cross_norm)
        joined = block.cross.qkv
        _linear(theirs.attention.linear[0], joined.weight[:width], joined.bias[:width])
        _linear(theirs.attention.linear[1], joined.weight[width:], joined.bias[width:])
        _attention_end(theirs.attention, block.cross)
    _norm(theirs.ffn.layer_norm, block.feed_norm)
    _linear(theirs.ffn.linear_0, block.feed.inner.weight, block.feed.inner.bias)
    _linear(theirs.ffn.linear_1, block.feed.outer.weight, block.feed.outer.bias)


def _attention_end(theirs: Any, attention: Attention) -> None:
    _linear(theirs.linear[-1], attention.output.weight, attention.output.bias)


def _linear(theirs: Any, weight: Tensor, bias: Tensor) -> None:
    theirs.weight, theirs.bias = _array(weight), _array(bias)


def _norm(theirs: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    theirs.gamma, theirs.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().numpy().copy()
