"""What the routes take and give, as JSON."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from unmask.tasks.translate import Alignment, Beams, Penalty
from unmask.tasks.views import AlignmentView
from unmask.text.tokenizer import whole_characters

Text = Annotated[str, AfterValidator(whole_characters)]  # half a character cannot be sent back
Name = Annotated[Text | None, Field(description="Which model; the first that can, if left out.")]
MANY = 1000  # of anything in a list; the server's own bounds, which are lower, say more
Texts = Annotated[list[Text], Field(max_length=MANY)]
Items = Annotated[list[Annotated[list[Text], Field(max_length=2)]], Field(max_length=MANY)]
Truncate = Annotated[bool, Field(description="Cut a text that is too long, or refuse it.")]
Number = Annotated[int, Field(ge=0, le=1000)]  # of a layer or a head
# Fields that say how texts are answered: requests that share a batch agree in all of them.
OPTIONS = {"truncate", "normalize", "add_special_tokens", "top"}


class Request(BaseModel):
    """A request: nothing in it is ignored."""

    model_config = ConfigDict(extra="forbid")

    model: Name = None

    def options(self) -> dict[str, Any]:
        """How to answer: the arguments of the verb, by name."""
        return self.model_dump(include=OPTIONS)


class LenientRequest(Request):
    """A request in somebody else's words: clients send more than there is here."""

    model_config = ConfigDict(extra="ignore")


class OpenAIEmbeddingRequest(LenientRequest):
    """OpenAI's request for embeddings."""

    input: Text | Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1, description="Only as many as there are.")] = None
    truncate: Truncate = False


class EmbedRequest(LenientRequest):
    """text-embeddings-inference's request for embeddings."""

    inputs: Text | Texts
    normalize: bool = True
    truncate: Truncate = False


class PredictRequest(LenientRequest):
    """A text, a pair [a, b], or a batch of them [[a], [b, c]]."""

    inputs: Text | Texts | Items
    truncate: Truncate = False


class Sentences(BaseModel):
    """One sentence and those it is compared with."""

    source_sentence: Text
    sentences: Texts


class SimilarityRequest(LenientRequest):
    """How near sentences are to one."""

    inputs: Sentences
    truncate: Truncate = False


class TokenizeRequest(LenientRequest):
    """Texts to split into tokens."""

    inputs: Text | Texts
    add_special_tokens: bool = True


class FillRequest(Request):
    """A text with [MASK] in it."""

    text: Text
    top: Annotated[int, Field(ge=1, le=100)] = 5
    truncate: Truncate = False


class NextSentenceRequest(Request):
    """Two sentences."""

    first: Text
    second: Text
    truncate: Truncate = False


class ClassifyRequest(Request):
    """Texts, or pairs of them."""

    texts: Annotated[list[Text | tuple[Text, Text]], Field(max_length=MANY)]
    truncate: Truncate = False


class AnswerRequest(Request):
    """A question and the passage that may answer it."""

    question: Text
    context: Text


class EntitiesRequest(Request):
    """Texts with names in them."""

    texts: Texts


class TranslateRequest(Request):
    """Texts to say in another language."""

    texts: Texts
    beams: Beams = 1
    penalty: Penalty = 1.0
    alignment: Alignment = False


class AttentionRequest(Request):
    """A text or a pair to look at."""

    text: Text
    second: Text | None = None
    start: Annotated[int, Field(ge=0, le=1_000_000, description="The first token shown.")] = 0
    mute: Annotated[
        dict[Number, Annotated[list[Number], Field(max_length=MANY)]],
        Field(max_length=MANY, description="Heads that say nothing, by layer."),
    ] = {}
    truncate: Truncate = False


class OpenAIEmbedding(BaseModel):
    """One embedding, as OpenAI's clients read it."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class OpenAIEmbeddingResponse(BaseModel):
    """OpenAI's answer."""

    object: Literal["list"] = "list"
    data: list[OpenAIEmbedding]
    model: str
    usage: Usage


class OpenAIModel(BaseModel):
    """A model, as OpenAI's clients list it."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "unmask"


class OpenAIModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class LabelScore(BaseModel):
    """A label and how likely it is."""

    label: str
    score: float


class TokenInfo(BaseModel):
    """A token and where it stands in its text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class NextSentence(BaseModel):
    """Does the second sentence follow the first?"""

    probability: float
    follows: bool


class TranslationResponse(BaseModel):
    """A translation; the score is the mean log-probability of a word."""

    model_config = ConfigDict(from_attributes=True)

    text: str
    score: float
    alignment: AlignmentView | None = None


class ServerInfo(BaseModel):
    """What is served, in text-embeddings-inference's words and some of ours."""

    model_id: str
    model_type: dict[str, Any]
    max_input_length: int
    max_client_batch_size: int
    max_batch_tokens: int
    max_concurrent_requests: int
    version: str
    models: list[dict[str, Any]]


class ErrorResponse(BaseModel):
    """Why there is no answer."""

    error: str
    error_type: str
