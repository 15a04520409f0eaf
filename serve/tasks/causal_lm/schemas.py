"""Messages of a language model's endpoint, a subset of OpenAI's chat completions."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from serve.tasks.causal_lm.generation_request import MAX_LIKELIEST, GenerationRequest, Usage
from serve.tasks.causal_lm.honoured import Only
from serve.tasks.causal_lm.messages import Message, NamedTool, Schema, Tool, ToolCall
from serve.tasks.generating.schemas import Finish

PATH = "/v1/chat/completions"
"""Path of chat completions, below the endpoint's route."""
MAX_MESSAGES, MAX_TOOLS = 256, 128
"""Most messages of a conversation, and most tools that it may call."""
ChatFinish = Finish | Literal["tool_calls"]
"""`tool_calls`: the answer ended with calls of tools."""


class JsonSchema(BaseModel):
    """A JSON schema of the answer."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(max_length=256)] | None = None
    schema_: Annotated[Schema, Field(alias="schema")]


class TextFormat(BaseModel):
    """Any text."""

    type: Literal["text"]


class JsonFormat(BaseModel):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFormat(BaseModel):
    """JSON that a schema allows."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class ChatRequest(GenerationRequest):
    """A conversation to answer; fields that change no answer are ignored."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"messages": [{"role": "user", "content": "What is a film?"}]}]
        },
    )

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    """The messages so far; the last one must not be the assistant's."""
    tools: Annotated[list[Tool], Field(default_factory=list, max_length=MAX_TOOLS)]
    """Tools that the model may call, if its chat template knows tools."""
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    """Whether the answer may call tools, must, or must call this one."""
    parallel_tool_calls: bool = True
    """Whether an answer may have several calls."""
    functions: Annotated[Any, Only([[]]), Field(default_factory=list)]
    """OpenAI's older name of `tools`."""
    response_format: Annotated[
        TextFormat | JsonFormat | SchemaFormat, Field(discriminator="type")
    ] = TextFormat(type="text")
    """Form of the answer: any text, a JSON object, or what a JSON schema allows."""
    logprobs: bool = False
    """Sends the log-probability of each token."""
    top_logprobs: Annotated[int, Field(strict=True, ge=0, le=MAX_LIKELIEST)] | None = None
    """Likeliest tokens that are sent with each token; it needs `logprobs`."""
    modalities: Annotated[Any, Only([["text"]]), Field(default_factory=lambda: ["text"])]
    """Kinds of output."""
    reasoning_effort: Annotated[Any, Only(["none"])] = "none"
    """How long the model reasons."""

    @model_validator(mode="after")
    def _fit(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise ValueError("two tools have the same name; rename one")
        chosen = self.tool_choice
        if isinstance(chosen, NamedTool) and chosen.function.name not in names:
            raise ValueError("tool_choice names a tool that is not among the tools")
        if chosen == "required" and not names:
            raise ValueError("tool_choice is required, and there are no tools; add them")
        if self.calls_tools and not isinstance(self.response_format, TextFormat):
            raise ValueError("a response_format and tools exclude each other; leave one out")
        return self

    @property
    def calls_tools(self) -> bool:
        """Whether the answer may call a tool."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def likeliest(self) -> int | None:
        """Likeliest tokens whose log-probability comes with each token; None for none at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


class Likely(BaseModel):
    """A token that was likely in a place of the answer."""

    token: str
    logprob: float
    bytes: list[int]
    """The bytes of its text, which may be a part of a character."""


class Scored(Likely):
    """A token of the answer."""

    top_logprobs: list[Likely]


class Logprobs(BaseModel):
    """Log-probabilities of the tokens of an answer."""

    content: list[Scored]
    refusal: None = None


def _is_none(value: Any) -> bool:
    return value is None


class AnswerMessage(BaseModel):
    """What the model says, and the tools that it calls."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    tool_calls: Annotated[list[ToolCall] | None, Field(exclude_if=_is_none)] = None


class Choice(BaseModel):
    """An answer."""

    index: int = 0
    message: AnswerMessage
    finish_reason: ChatFinish
    logprobs: Annotated[Logprobs | None, Field(exclude_if=_is_none)] = None


class ChatResponse(BaseModel):
    """Complete answers."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class CallPiece(ToolCall):
    """A whole call of a tool in a stream."""

    index: int


class Delta(BaseModel):
    """What is said and called since the last event."""

    role: Annotated[Literal["assistant"] | None, Field(exclude_if=_is_none)] = None
    content: Annotated[str | None, Field(exclude_if=_is_none)] = None
    tool_calls: Annotated[list[CallPiece] | None, Field(exclude_if=_is_none)] = None


class PieceChoice(BaseModel):
    """A part of an answer."""

    index: int = 0
    delta: Delta
    finish_reason: ChatFinish | None = None
    logprobs: Annotated[Logprobs | None, Field(exclude_if=_is_none)] = None


class ChatPiece(BaseModel):
    """One event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[PieceChoice]
    usage: Annotated[Usage | None, Field(exclude_if=_is_none)] = None


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
