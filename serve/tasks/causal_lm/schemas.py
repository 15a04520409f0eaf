"""Messages of a language model's endpoint, a subset of OpenAI's chat completions."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from serve.tasks.causal_lm.honoured import Only, without_nulls
from serve.tasks.generating.schemas import Finish

PATH = "/v1/chat/completions"
"""Path of chat completions, below the endpoint's route."""
MAX_MESSAGES, MAX_CHARACTERS = 256, 65_536
"""Most messages of a conversation, and most characters of one message."""
MAX_STOPS, MAX_STOP_CHARACTERS = 4, 64
"""Most stop texts of a request, and most characters of one."""
MAX_ANSWER_TOKENS = 4096
"""Most tokens of an answer."""
SEEDS = 2**63
"""Number of different seeds."""
DEFAULT_ANSWER_TOKENS = 256


def _joined(content: Any) -> Any:
    """Returns the text of a list of parts; anything else as it is."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
        raise ValueError("only parts of text are read; leave others out")
    return "".join(map(str, texts))


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, Field(max_length=MAX_CHARACTERS), BeforeValidator(_joined)]
    """The text, or a list of parts of text."""


class StreamOptions(BaseModel):
    """Optional parts of a stream."""

    include_usage: bool = False


COMPLETIONS_PATH = "/v1/completions"
"""Path of completions of a plain text, below the endpoint's route."""

Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class GenerationRequest(BaseModel):
    """How a text is written."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    model: Annotated[str, Field(max_length=256)] | None = None
    """Name of the model; the default is the model of this endpoint."""
    max_tokens: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Most tokens of the answer; of more than 4,096, or than the model takes, so many."""
    max_completion_tokens: Annotated[int, Field(strict=True, ge=1)] | None = None
    """OpenAI's newer name of `max_tokens`; it takes precedence."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Sampling temperature; 0 always selects the most likely token."""
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Tokens are sampled from the smallest set of likely ones with this total probability; 0 always
    selects the most likely one."""
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    """Texts that end the answer; the answer does not include them."""
    seed: Annotated[int, Field(ge=-SEEDS, lt=SEEDS)] | None = None
    """Seed of the sampling: the same seed gives the same answer; in 16 bits, rounding beside other
    answers may change it."""
    stream: bool = False
    """Send the answer as server-sent events while it is generated."""
    stream_options: StreamOptions | None = None
    n: Annotated[Any, Only([1])] = 1
    """Number of answers."""
    best_of: Annotated[Any, Only([1])] = 1
    """Number of answers of which the best is sent."""
    frequency_penalty: Annotated[Any, Only([0])] = 0
    """Makes frequent tokens less likely."""
    presence_penalty: Annotated[Any, Only([0])] = 0
    """Makes tokens that occur less likely."""
    repetition_penalty: Annotated[Any, Only([1])] = 1
    """Makes tokens that occur less likely, as vLLM does."""
    logit_bias: Annotated[Any, Only([{}])] = {}
    """Makes tokens likelier or less likely."""
    top_k: Annotated[Any, Only([-1, 0])] = -1
    """Number of likely tokens that are sampled from, as vLLM does."""
    min_p: Annotated[Any, Only([0])] = 0
    """Least probability relative to the most likely token, as vLLM does."""
    min_tokens: Annotated[Any, Only([0])] = 0
    """Fewest tokens of the answer, as vLLM does."""
    ignore_eos: Annotated[Any, Only([False])] = False
    """Writes on after the end token, as vLLM does."""

    _nulls = model_validator(mode="before")(without_nulls)

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end the answer."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop
        return tuple(stops or ())

    @property
    def answer_tokens(self) -> int:
        """Most tokens of the answer."""
        asked = self.max_completion_tokens or self.max_tokens or DEFAULT_ANSWER_TOKENS
        return min(asked, MAX_ANSWER_TOKENS)

    @property
    def heat(self) -> float:
        """The temperature with which tokens are sampled; 0 if the most likely one is selected."""
        return self.temperature if self.top_p else 0.0


def _none(tools: list[Any] | None) -> list[Any] | None:
    if tools:
        raise ValueError("this endpoint calls no tools; leave them out")
    return tools


class ChatRequest(GenerationRequest):
    """A conversation to answer; fields that change no answer are ignored."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"messages": [{"role": "user", "content": "What is a film?"}]}]
        },
    )

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    """The messages so far; the last one must not be the assistant's."""
    tools: Annotated[list[Any] | None, AfterValidator(_none)] = None
    """Must be empty: this endpoint calls no tools."""
    tool_choice: Annotated[Any, Only(["none", "auto"])] = "none"
    """Which tools the answer calls."""
    functions: Annotated[Any, Only([[]])] = []
    """OpenAI's older name of `tools`."""
    response_format: Annotated[Any, Only([{"type": "text"}])] = {"type": "text"}
    """Form of the answer."""
    logprobs: Annotated[Any, Only([False])] = False
    """Sends the probabilities of tokens."""
    modalities: Annotated[Any, Only([["text"]])] = ["text"]
    """Kinds of output."""
    reasoning_effort: Annotated[Any, Only(["none"])] = "none"
    """How long the model reasons."""


class CompletionRequest(GenerationRequest):
    """A text to continue, without any chat template; fields that change no answer are ignored."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "A superb film"}]})

    prompt: Annotated[str, Field(max_length=MAX_CHARACTERS)]
    """The text to continue."""
    echo: Annotated[Any, Only([False])] = False
    """Whether the answer begins with the prompt."""
    suffix: Annotated[Any, Only([""])] = ""
    """The text that follows the answer."""
    logprobs: Annotated[Any, Only([False])] = False
    """Sends the probabilities of tokens."""


class Usage(BaseModel):
    """Tokens of the prompt and of the answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Choice(BaseModel):
    """The answer."""

    index: int = 0
    message: Message
    finish_reason: Finish


class ChatResponse(BaseModel):
    """A complete answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class CompletionChoice(BaseModel):
    """The continuation of a text, or a part of it."""

    index: int = 0
    text: str
    finish_reason: Finish | None = None
    logprobs: None = None


class CompletionResponse(BaseModel):
    """A complete continuation, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class Delta(BaseModel):
    """Text generated since the last event."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class PieceChoice(BaseModel):
    """A part of the answer."""

    index: int = 0
    delta: Delta
    finish_reason: Finish | None = None


class ChatPiece(BaseModel):
    """One event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[PieceChoice]
    usage: Usage | None = None


class Model(BaseModel):
    """A model of this endpoint."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["winnow"] = "winnow"


class Models(BaseModel):
    """The models of this endpoint."""

    object: Literal["list"] = "list"
    data: list[Model]


class ChatInfo(BaseModel):
    """The model that this endpoint serves."""

    task: str
    """What the model was trained for, such as causal-lm."""
    name: str
    version: str
    metrics: dict[str, float]
    engine: str
    max_length: int
    """Most tokens of a conversation and its answer together."""
