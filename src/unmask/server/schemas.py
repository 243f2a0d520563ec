"""JSON request bodies -> validated models; answers -> JSON response bodies."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from unmask.tasks.translate import Alignment, Beams, Penalty
from unmask.tasks.views import AlignmentView
from unmask.text.tokenizer import replace_surrogates

# Half of a surrogate pair, which JSON can express, could not be encoded as UTF-8 in the response.
Text = Annotated[str, AfterValidator(replace_surrogates)]
NAME = "Name of the model; by default, the first one that supports this route."
Name = Annotated[Text | None, Field(description=NAME)]
# The longest list. The limits of the server are lower and have clearer errors, but they apply only
# after validation, which takes too long for the hundreds of thousands of items of a large body.
MAX_ITEMS = 1000
Texts = Annotated[list[Text], Field(max_length=MAX_ITEMS)]
Items = Annotated[list[Annotated[list[Text], Field(max_length=2)]], Field(max_length=MAX_ITEMS)]
TRUNCATE = "Truncate texts that are too long (true), or refuse them (false)."
Truncate = Annotated[bool, Field(description=TRUNCATE)]
Number = Annotated[int, Field(ge=0, le=1000)]  # of a layer or a head
# Fields that become keyword arguments of a capability. Requests share a batch only if these agree.
CAPABILITY_OPTIONS = {"truncate", "normalize", "add_special_tokens", "top"}


class Request(BaseModel):
    """A request body; unknown fields are refused, so that a misspelled option is not ignored."""

    model_config = ConfigDict(extra="forbid")

    model: Name = None

    def options(self) -> dict[str, Any]:
        """Return the options of the request, as keyword arguments for its capability."""
        return self.model_dump(include=CAPABILITY_OPTIONS)


class LenientRequest(Request):
    """A request body of a compatible route; unknown fields, which its clients send, are ignored."""

    model_config = ConfigDict(extra="ignore")


class OpenAIEmbeddingRequest(LenientRequest):
    """Request for embeddings in OpenAI's format; embeddings have length 1."""

    input: Text | Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[
        int | None, Field(ge=1, description="If set, must be the model's own number of dimensions.")
    ] = None
    truncate: Truncate = False


class EmbedRequest(LenientRequest):
    """Request for embeddings in text-embeddings-inference's format; normalize: to length 1."""

    inputs: Text | Texts
    normalize: bool = True
    truncate: Truncate = False


class PredictRequest(LenientRequest):
    """What to classify: a text, a pair [a, b], or a batch of texts and pairs [[a], [b, c]]."""

    inputs: Text | Texts | Items
    truncate: Truncate = False


class Sentences(BaseModel):
    """A source sentence and the sentences to compare with it."""

    source_sentence: Text
    sentences: Texts


class SimilarityRequest(LenientRequest):
    """Request for the similarity of sentences to a source sentence."""

    inputs: Sentences
    truncate: Truncate = False


class TokenizeRequest(LenientRequest):
    """Texts to tokenize; add_special_tokens includes [CLS] and [SEP] in the result."""

    inputs: Text | Texts
    add_special_tokens: bool = True


class FillRequest(Request):
    """A text with one or more [MASK]; top is the number of predictions for each."""

    text: Text
    top: Annotated[int, Field(ge=1, le=100)] = 5
    truncate: Truncate = False


class NextSentenceRequest(Request):
    """Two sentences, for next-sentence prediction."""

    first: Text
    second: Text
    truncate: Truncate = False


class ClassifyRequest(Request):
    """Texts, or pairs [a, b] of texts, to classify or score."""

    texts: Annotated[list[Text | tuple[Text, Text]], Field(max_length=MAX_ITEMS)]
    truncate: Truncate = False


class AnswerRequest(Request):
    """A question and the passage in which to find the answer."""

    question: Text
    context: Text


class EntitiesRequest(Request):
    """Texts in which to find named entities."""

    texts: Texts


class TranslateRequest(Request):
    """Texts to translate."""

    texts: Texts
    beams: Beams = 1
    penalty: Penalty = 1.0
    alignment: Alignment = False


class AttentionRequest(Request):
    """A text or a pair of texts whose attention to return; mute lists heads to ablate, by layer."""

    text: Text
    second: Text | None = None
    start: Annotated[
        int, Field(ge=0, le=1_000_000, description="Number of the first token to return, from 0.")
    ] = 0
    mute: Annotated[
        dict[Number, Annotated[list[Number], Field(max_length=MAX_ITEMS)]],
        Field(max_length=MAX_ITEMS, description="Heads to ablate, by layer."),
    ] = {}
    truncate: Truncate = False


class OpenAIEmbedding(BaseModel):
    """An embedding in OpenAI's format: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Number of tokens in the input, with [CLS] and [SEP]; both fields have the same value."""

    prompt_tokens: int
    total_tokens: int


class OpenAIEmbeddingResponse(BaseModel):
    """Embeddings in OpenAI's format, in the order of the input."""

    object: Literal["list"] = "list"
    data: list[OpenAIEmbedding]
    model: str
    usage: Usage


class OpenAIModel(BaseModel):
    """A served model in OpenAI's format; id is the name to use in requests."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "unmask"


class OpenAIModelList(BaseModel):
    """All served models, in OpenAI's format."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class LabelScore(BaseModel):
    """A label and its probability."""

    label: str
    score: float


class TokenInfo(BaseModel):
    """A token and its character offsets in the text; null for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class NextSentence(BaseModel):
    """The probability that the second sentence follows the first; follows is true from 0.5."""

    probability: float
    follows: bool


class TranslationResponse(BaseModel):
    """A translation; score is the mean log-probability of its tokens."""

    model_config = ConfigDict(from_attributes=True)

    text: str
    score: float
    alignment: AlignmentView | None = None


class ServerInfo(BaseModel):
    """Facts about the server in text-embeddings-inference's format, which has room for one model.

    The fields model_id, model_type and max_input_length describe the first model; models lists all.
    """

    model_id: str
    model_type: dict[str, Any]
    max_input_length: int
    max_client_batch_size: int
    max_batch_tokens: int
    max_concurrent_requests: int
    version: str
    models: list[dict[str, Any]]


class ErrorResponse(BaseModel):
    """An error: a message for people, and an error_type for programs."""

    error: str
    error_type: str
