"""A head reads the encoder and the layers that its config names, wherever it is used."""

from dataclasses import replace

import pytest
import torch

from tests.conftest import tiny_config, tiny_network
from tests.objectives.conftest import around, batch_of, letters
from tests.stepping import take_step
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.data.corpus.examples import IS_NEXT, NOT_NEXT
from unmask.infer.compiled.export import export_onnx
from unmask.infer.compiled.graph import EngineGraph, write_onnx
from unmask.infer.model import Model
from unmask.inspect.attribution import answer
from unmask.model.factory import freeze, part_of
from unmask.model.heads import VectorHead
from unmask.model.network import CausalGenerator, Network, PlainRows
from unmask.model.shape import (
    PAIRS,
    LabelsConfig,
    PoolerConfig,
    Shape,
    TokensConfig,
    VectorConfig,
)
from unmask.objectives.mlm import ANSWERS, PLACES, MaskedLM, MaskSettings
from unmask.objectives.pairs import PairOrder, PairSettings
from unmask.system.errors import SettingsError
from unmask.system.settings import validate
from unmask.tasks.forward import READ_PLACES, scores_of
from unmask.train.steps.base import MicroBatch, TrainingModule

TEXTS = [around([7, 8], [9]), around([10], [11, 12, 13]), around([14, 15], [16, 17, 18])]
TAGS = LabelsConfig(on="token", names=("a", "b"))
STILL = {"dropout": 0.0, "attention_dropout": 0.0}


def masked_lm():
    return MaskedLM(MaskSettings(mask_rate=0.5), letters(23))


def batch_for(objective):
    plain = batch_of(TEXTS, pair=[IS_NEXT, NOT_NEXT, IS_NEXT], row_length=16)
    return objective.prepare(plain, 3, 0.0)


def two_encoders(heads):
    """The main encoder, and a narrower one that borrows its token embeddings."""
    main = tiny_config(init_std=0.2, **STILL)
    sizes = {"width": 8, "inner_width": 16, "embedding_width": 16, "layers": 1, "borrows": "main"}
    encoders = {"main": main, "gen": main.model_copy(update=sizes)}
    torch.manual_seed(0)
    return Network(validate(Shape, {"encoders": encoders, "heads": heads}, where="network")).eval()


def trace_of(network, batch, encoder="main"):
    trace = []
    network.encode(batch, encoder=encoder, trace=trace)
    return trace


def flat(trace, places):
    return [states.flatten(0, 1)[places] for states in trace]


@pytest.mark.parametrize("mix", ["weighted", (0, 2), (1,)], ids=str)
def test_masked_tokens_are_learned_from_the_layers_of_their_head(mix):
    network = tiny_network({"tokens": TokensConfig(mix=mix)}, **STILL).train()
    objective = masked_lm()
    batch = batch_for(objective)
    loss = objective(network, batch, {})["mlm"]
    states = network.heads["tokens"].mix(flat(trace_of(network, batch), batch.labels[PLACES]))
    expected = network.token_loss(states, batch.labels[ANSWERS])
    torch.testing.assert_close(loss, expected)
    loss.backward()
    for name, parameter in network.heads.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_masked_language_modelling_learns_the_weights_of_its_mix():
    network = tiny_network({"tokens": TokensConfig(mix="weighted")}, **STILL).train()
    module = TrainingModule(network, masked_lm())
    piece = MicroBatch(batch_for(module.objective), 0)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = [take_step(module, [piece], optimizer).loss for _ in range(10)]
    assert losses[-1] < 0.9 * losses[0]
    assert network.heads["tokens"].mix.weights.abs().min() > 1e-3
    assert network.heads["tokens"].mix.scale.item() != 1.0


@pytest.mark.parametrize("mix", ["weighted", (0, 1, 2)], ids=str)
def test_text_is_generated_from_the_layers_that_were_trained(mix):
    network = tiny_network({"tokens": TokensConfig(mix=mix)}, causal=True, **STILL)
    module = TrainingModule(network.train(), masked_lm())
    piece = MicroBatch(batch_for(module.objective), 0)
    assert take_step(module, [piece], torch.optim.SGD(module.parameters(), lr=0.1)).taken
    network.eval()
    ids = torch.tensor([[2, 7, 8, 9]])
    nothing = torch.zeros_like(ids)
    rows = PlainRows(ids, nothing, torch.arange(4)[None], nothing)
    with torch.no_grad():
        states = network.states_for("tokens", rows)
        expected = network.token_scores(states[:, -1])
        decoder = CausalGenerator(network)
        found, _ = decoder.step(*decoder.begin(ids, torch.tensor([4])))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("mix", ["weighted", (0, 1)], ids=str)
def test_labels_of_a_text_are_read_from_the_layers_of_the_pooler(mix):
    labels = LabelsConfig(names=("a", "b", "c"))
    network = tiny_network({"pooler": PoolerConfig(mix=mix), "labels": labels})
    batch = batch_of(TEXTS)
    batch = replace(batch, labels={READ_PLACES: batch.begins})
    trace = trace_of(network, batch)
    pooler = network.heads["pooler"]
    expected = network.heads["labels"](pooler(pooler.mix(flat(trace, batch.begins))))
    torch.testing.assert_close(scores_of(network, batch), expected)
    alone = trace_of(network, batch_of(TEXTS[:1]))
    torch.testing.assert_close(network.scores_of_labels(alone), expected[:1])


def test_layers_above_those_of_the_pooler_are_not_trained():
    heads = {"pooler": PoolerConfig(mix=(0, 1)), "labels": LabelsConfig(names=("a", "b"))}
    network = tiny_network(heads, layers=3)
    freeze(network, 0, pooler=False)
    trained = [block.feed.outer.weight.requires_grad for block in network.encoder.blocks]
    assert trained == [True, False, False]


@pytest.mark.parametrize("tokens", ["last", "weighted", (0, 1)], ids=str)
@pytest.mark.parametrize("pooler", ["last", "weighted", (1, 2)], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_readers_of_different_layers_share_one_pass(tokens, pooler, training):
    heads = {"tokens": TokensConfig(mix=tokens), "pooler": PoolerConfig(mix=pooler), "pair": PAIRS}
    network = tiny_network(heads, **STILL).train(training)
    readers = [masked_lm(), PairOrder(PairSettings(), letters(23))]
    joint = readers[0].joined(readers[1:])
    batch = batch_for(joint)
    expected = readers[0](network, batch, {}) | readers[1](network, batch, {})
    passes = []
    network.encoder.register_forward_hook(lambda *_: passes.append(1))
    found = joint(network, batch, {})
    assert len(passes) == 1
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_readers_of_two_encoders_have_a_pass_of_each():
    heads = {"tokens": TokensConfig(encoder="gen"), "pooler": PoolerConfig(), "pair": PAIRS}
    network = two_encoders(heads).train()
    readers = [masked_lm(), PairOrder(PairSettings(), letters(23))]
    joint = readers[0].joined(readers[1:])
    batch = batch_for(joint)
    found = joint(network, batch, {})
    for reader in readers:
        for name, value in reader(network, batch, {}).items():
            torch.testing.assert_close(found[name], value)
    states = flat(trace_of(network, batch, "gen"), batch.labels[PLACES])[-1]
    expected = network.token_loss(states, batch.labels[ANSWERS])
    torch.testing.assert_close(found["mlm"], expected)


@pytest.mark.parametrize("mix", ["last", "weighted", (0, 2)], ids=str)
def test_a_vector_head_is_given_its_states_as_any_other(mix):
    network = tiny_network({"half": VectorConfig(width=5, mix=mix)})
    batch, head = batch_of(TEXTS), network.head("half", VectorHead)
    vectors = head(network.states_for("half", batch, places=batch.begins))
    expected = head(head.mix(flat(trace_of(network, batch), batch.begins)))
    torch.testing.assert_close(vectors, expected)
    whole = head(network.states_for("half", batch)).flatten(0, 1)[batch.begins]
    torch.testing.assert_close(whole, vectors, atol=1e-5, rtol=1e-4)


# A second encoder


@pytest.mark.parametrize("mix", ["last", "weighted", (0, -1)], ids=str)
def test_labels_on_a_second_encoder_are_scored_and_published(mix, tokenizer, tmp_path):
    network = two_encoders({"labels": TAGS.model_copy(update={"encoder": "gen", "mix": mix})})
    batch = batch_of(TEXTS, row_length=16)
    batch = replace(batch, labels={READ_PLACES: batch.begins + 1})
    head = network.heads["labels"]
    with torch.no_grad():
        expected = head(head.mix(flat(trace_of(network, batch, "gen"), batch.labels[READ_PLACES])))
        torch.testing.assert_close(scores_of(network, batch), expected)
        inputs = batch.tokens, batch.segments, batch.index, batch.owner
        torch.testing.assert_close(
            EngineGraph(network)(*inputs, batch.labels[READ_PLACES]), expected
        )
    for name, published in (("whole", network), ("part", part_of(network, ["gen", "labels"]))):
        save_folder(tmp_path / name, published, tokenizer)
        loaded = load_folder(tmp_path / name).network
        with torch.no_grad():
            torch.testing.assert_close(scores_of(loaded, batch), expected)
    assert list(loaded.shape.encoders) == ["main"]
    assert loaded.shape.labels.mix == mix


def test_a_graph_of_labels_on_a_second_encoder_has_their_scores(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    network = two_encoders({"labels": TAGS.model_copy(update={"encoder": "gen"})})
    batch = batch_of(TEXTS, row_length=16)
    given = batch.tokens, batch.segments, batch.index, batch.owner, batch.begins
    inputs = dict(zip(("tokens", "segments", "index", "owner", "places"), given, strict=True))
    write_onnx(EngineGraph(network), inputs, ["scores"], tmp_path / "graph.onnx")
    session = runtime.InferenceSession(tmp_path / "graph.onnx")
    (found,) = session.run(["scores"], {name: value.numpy() for name, value in inputs.items()})
    with torch.no_grad():
        expected = scores_of(network, replace(batch, labels={READ_PLACES: batch.begins}))
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-4, rtol=1e-4)


def test_what_follows_the_main_encoder_alone_refuses_other_heads_by_name(tokenizer, tmp_path):
    says = "its head 'labels' reads the encoder 'gen'.*Objective.publish.*use that folder"
    network = two_encoders({"labels": TAGS.model_copy(update={"encoder": "gen"})})
    save_folder(tmp_path / "model", network, tokenizer)
    folder = load_folder(tmp_path / "model")
    with pytest.raises(SettingsError, match=says):
        export_onnx(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(SettingsError, match=says):
        answer(Model(folder), "the cat")


def test_tokens_are_filled_by_a_head_on_a_second_encoder(tokenizer, tmp_path):
    network = two_encoders({"tokens": TokensConfig(encoder="gen", mix=(0, 1))})
    save_folder(tmp_path / "model", network, tokenizer)
    model = Model(load_folder(tmp_path / "model"))
    (guesses,) = model.fill("the [MASK] sat", top=3)
    example = model.example("the [MASK] sat")
    rows = [torch.tensor([own]) for own in (example.ids, example.segments)]
    length = torch.arange(len(example.ids))[None]
    with torch.no_grad():
        trace = trace_of(network, PlainRows(*rows, length, torch.zeros_like(length)), "gen")
        states = torch.cat(trace, dim=-1)[:, 2]
        best = network.token_scores(states)[0].softmax(-1).topk(3)
    assert [guess.token for guess in guesses] == [model.token(i) for i in best.indices.tolist()]
    assert [g.probability for g in guesses] == pytest.approx(best.values.tolist(), abs=1e-5)
