"""Messages of a language model's endpoint, as clients of OpenAI's chat completions know them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

PATH = "/v1/chat/completions"
"""Where answers are requested, below the endpoint's route."""
MAX_MESSAGES, MAX_CHARACTERS = 256, 65_536
"""Of a conversation, and of one message."""
MAX_STOPS, MAX_STOP_CHARACTERS = 4, 64
"""Texts that end an answer, and how long one may be."""
MAX_ANSWER_TOKENS = 4096
"""Most tokens that may be asked for."""
DEFAULT_ANSWER_TOKENS = 256

Finish = Literal["stop", "length"]
"""The model or a stop text ended the answer; or its tokens or the time were used up."""


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(max_length=MAX_CHARACTERS)]


class StreamOptions(BaseModel):
    """What a stream holds besides the answer."""

    include_usage: bool = False


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class ChatRequest(BaseModel):
    """A conversation to be answered; fields that are not known are passed over."""

    model_config = ConfigDict(
        extra="ignore",
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [{"messages": [{"role": "user", "content": "What is a film?"}]}]
        },
    )

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    """The turns so far, the last one by the user."""
    model: Annotated[str, Field(max_length=256)] | None = None
    """Name of the model; left out, the one that answers here."""
    max_tokens: Annotated[int, Field(strict=True, ge=1, le=MAX_ANSWER_TOKENS)] | None = None
    """Most tokens of the answer."""
    max_completion_tokens: Annotated[int, Field(strict=True, ge=1, le=MAX_ANSWER_TOKENS)] | None = (
        None
    )
    """The same under its newer name."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """How freely words are drawn; 0 always takes the likeliest."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Words are drawn from the likeliest that have this probability together."""
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    """Texts that end the answer, and are not part of it."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """The same seed draws the same words."""
    stream: bool = False
    """Whether the answer comes as it is written, as server-sent events."""
    stream_options: StreamOptions | None = None
    n: Literal[1] = 1

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end the answer."""
        found = [self.stop] if isinstance(self.stop, str) else self.stop
        return tuple(found or ())

    @property
    def answer_tokens(self) -> int:
        """Most tokens of the answer."""
        return self.max_completion_tokens or self.max_tokens or DEFAULT_ANSWER_TOKENS


class Usage(BaseModel):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Choice(BaseModel):
    """The answer."""

    index: int = 0
    message: Message
    finish_reason: Finish


class ChatResponse(BaseModel):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class Delta(BaseModel):
    """What came since the last piece."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class PieceChoice(BaseModel):
    """A piece of the answer."""

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
    """A model that answers."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["winnow"] = "winnow"


class Models(BaseModel):
    """Every model that answers here."""

    object: Literal["list"] = "list"
    data: list[Model]


class ChatInfo(BaseModel):
    """Which model answers."""

    task: Literal["causal-lm"] = "causal-lm"
    name: str
    version: str
    metrics: dict[str, float]
    engine: str
    max_length: int
    """Tokens of a conversation and its answer together."""
