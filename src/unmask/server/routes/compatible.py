"""Routes that existing clients can call: OpenAI's and text-embeddings-inference's.

They take and return what these APIs document, so the names of fields are theirs.
"""

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter, Response

from unmask.infer.embed import Vector
from unmask.server import schemas
from unmask.server.capabilities import CAPABILITIES, Embedded, TextOrPair, capabilities
from unmask.server.limits import RequestError, invalid
from unmask.server.service import Service, choose_model, model_named
from unmask.tasks.classify import Labels
from unmask.version import VERSION


def router(service: Service) -> APIRouter:
    """Return the compatible routes, for the models of a service."""
    routes = APIRouter()
    _add_openai_routes(routes, service)
    _add_vector_routes(routes, service)
    _add_label_routes(routes, service)
    _add_info_routes(routes, service)
    return routes


def _add_openai_routes(routes: APIRouter, service: Service) -> None:
    @routes.post("/v1/embeddings", tags=["OpenAI"])
    async def embeddings(
        request: schemas.OpenAIEmbeddingRequest,
    ) -> schemas.OpenAIEmbeddingResponse:
        """Embed one or several texts, as in OpenAI's API.

        The embeddings have length 1. The server does not shorten embeddings: if dimensions is set,
        it must be the model's own.
        """
        texts = _as_list(request.input)
        if not texts:
            raise invalid("input is empty; need a text or a list of texts.")
        name, model = choose_model(service.models, "embed", request.model)
        width = model.network.config.width
        # Checked before any text is computed: the width is known.
        if request.dimensions not in (None, width):
            raise invalid(
                f"dimensions is {request.dimensions}; the model's embeddings have {width}. Leave "
                "dimensions out."
            )
        embedded: list[Embedded] = await service.ask("embed", request, texts)
        token_count = sum(tokens for _, tokens in embedded)
        return schemas.OpenAIEmbeddingResponse(
            data=[
                schemas.OpenAIEmbedding(
                    index=i, embedding=_encoded(vector, request.encoding_format)
                )
                for i, (vector, _) in enumerate(embedded)
            ],
            model=name,
            usage=schemas.Usage(prompt_tokens=token_count, total_tokens=token_count),
        )

    @routes.get("/v1/models", tags=["OpenAI"])
    async def models() -> schemas.OpenAIModelList:
        """List the models that this server offers, as in OpenAI's API."""
        return schemas.OpenAIModelList(
            data=[schemas.OpenAIModel(id=name) for name in service.models]
        )

    @routes.get("/v1/models/{name:path}", tags=["OpenAI"])
    async def model(name: str) -> schemas.OpenAIModel:
        """Return one model by its name, or 404 if the server does not offer it."""
        model_named(service.models, name)
        return schemas.OpenAIModel(id=name)


def _add_vector_routes(routes: APIRouter, service: Service) -> None:
    @routes.post("/embed", tags=["text-embeddings-inference"])
    async def embed(request: schemas.EmbedRequest) -> list[list[float]]:
        """Embed one or several texts: one vector of floats per text."""
        embedded: list[Embedded] = await service.ask("embed", request, _as_list(request.inputs))
        return [vector.tolist() for vector, _ in embedded]

    @routes.post("/similarity", tags=["text-embeddings-inference"])
    async def similarity(request: schemas.SimilarityRequest) -> list[float]:
        """Compare sentences with a source sentence: one cosine similarity (-1 to 1) for each."""
        texts = [request.inputs.source_sentence, *request.inputs.sentences]
        embedded: list[Embedded] = await service.ask("embed", request, texts)
        first, *others = (vector for vector, _ in embedded)
        # Vectors have length 1, so the product is the cosine; rounding can put it just outside.
        return [float(np.clip(first @ other, -1.0, 1.0)) for other in others]

    @routes.post(
        "/tokenize",
        tags=["text-embeddings-inference"],
        response_model=list[list[schemas.TokenInfo]],
    )
    async def tokenize(request: schemas.TokenizeRequest) -> Response:
        """Tokenize texts: for each text its tokens, with ids and character offsets."""
        token_lists = await service.ask("tokenize", request, _as_list(request.inputs))
        # Already JSON (see `capabilities._tokenize`), so the event loop only joins it.
        return Response(f"[{','.join(token_lists)}]", media_type="application/json")


def _add_label_routes(routes: APIRouter, service: Service) -> None:
    async def label_scores(
        request: schemas.PredictRequest,
    ) -> tuple[list[list[schemas.LabelScore]], bool]:
        items, is_batch = _texts_or_pairs(request.inputs)
        predictions: list[Labels] = await service.ask("classify", request, items)
        scores = [
            [
                schemas.LabelScore(label=label, score=score)
                for label, score in sorted(prediction.probabilities.items(), key=lambda p: -p[1])
            ]
            for prediction in predictions
        ]
        return scores, is_batch

    @routes.post("/predict", tags=["text-embeddings-inference"])
    async def predict(
        request: schemas.PredictRequest,
    ) -> list[schemas.LabelScore] | list[list[schemas.LabelScore]]:
        """Classify a text, a pair of texts, or a batch: labels with scores, most likely first.

        The answer to a batch is a list with one such list per item.
        """
        scores, is_batch = await label_scores(request)
        return scores if is_batch else scores[0]

    @routes.post("/", tags=["text-embeddings-inference"])
    async def root(request: schemas.PredictRequest) -> Any:
        """Answer as Hugging Face's inference API does: with label scores or with embeddings.

        Without model, the first model answers. If it is a classifier, the answer has the scores of
        its labels for each input; any other model returns one embedding per text.
        """
        # Every model can embed, so this finds the named or the first model, whatever its task.
        _, model = choose_model(service.models, "embed", request.model)
        if CAPABILITIES["classify"].supports(model):
            return (await label_scores(request))[0]
        inputs = [request.inputs] if isinstance(request.inputs, str) else request.inputs
        texts = [text for text in inputs if isinstance(text, str)]
        if len(texts) < len(inputs):
            raise invalid("inputs has pairs of texts; this model needs a text or a list of texts.")
        embedded: list[Embedded] = await service.ask("embed", request, texts)
        return [vector.tolist() for vector, _ in embedded]


def _add_info_routes(routes: APIRouter, service: Service) -> None:
    @routes.get("/info", tags=["text-embeddings-inference"])
    async def info() -> schemas.ServerInfo:
        """Describe the first model and the limits of the server, and list all models."""
        name, model = next(iter(service.models.items()))
        labels = model.network.shape.labels
        model_type: dict[str, object] = {"embedding": {"pooling": "mean"}}
        if labels and CAPABILITIES["classify"].supports(model):
            names = {str(i): name for i, name in enumerate(labels.names)}
            model_type = {"classifier": {"id2label": names}}
        return schemas.ServerInfo(
            model_id=name,
            model_type=model_type,
            max_input_length=model.network.config.max_length,
            max_client_batch_size=service.limits.texts,
            max_batch_tokens=service.limits.batch_tokens,
            max_concurrent_requests=service.limits.queue,
            version=VERSION,
            models=[
                {"id": name, "can": capabilities(model)} for name, model in service.models.items()
            ],
        )

    @routes.get("/health", tags=["text-embeddings-inference"])
    async def health() -> dict[str, str]:
        """Return 200 while the server can answer requests, else 503. Needs no token."""
        # Without its inference thread, the server would accept requests and never answer them.
        if not service.batcher.thread.is_alive():
            raise RequestError(503, "the inference thread is not running.", "unhealthy")
        return {"status": "ok"}


def _as_list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _texts_or_pairs(inputs: str | list[str] | list[list[str]]) -> tuple[list[TextOrPair], bool]:
    """Return the inputs as texts or pairs, and whether they are a batch.

    "a" -> text; ["a"] -> text; ["a", "b"] -> pair; [["a"], ["b", "c"]] -> batch of text and pair.
    """
    if isinstance(inputs, str):
        return [inputs], False
    if batch := [item for item in inputs if isinstance(item, list)]:
        return [_text_or_pair(item) for item in batch], True
    return [_text_or_pair([text for text in inputs if isinstance(text, str)])], False


def _text_or_pair(texts: list[str]) -> TextOrPair:
    if len(texts) not in (1, 2):
        raise invalid(f"a list of {len(texts)} texts; need [text] or [text, second].")
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])


def _encoded(vector: Vector, encoding: str) -> list[float] | str:
    if encoding == "base64":  # of little-endian float32, on every machine
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
