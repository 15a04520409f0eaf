"""Messages of a conversation, and tools that a model may call, as OpenAI's API has them."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from serve.tasks.causal_lm.generation_request import MAX_CHARACTERS

MAX_NAME = 64
"""Most characters of a tool's name."""
MAX_DEPTH = 64
"""Most levels of objects and lists in a JSON schema."""
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]+$", max_length=MAX_NAME)]


def _joined(content: Any) -> Any:
    """Returns the text of a list of parts; anything else as it is."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
        raise ValueError("only parts of text are read; leave others out")
    return "".join(map(str, texts))


def _readable(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a JSON schema; raises ValueError if a template or a grammar cannot read it."""
    level, depth = list[Any]([schema]), 0
    while level and (depth := depth + 1) <= MAX_DEPTH:
        nested = [each.values() if isinstance(each, dict) else each for each in level]
        level = [value for each in nested for value in each if isinstance(value, dict | list)]
    if level:
        raise ValueError(f"objects and lists are nested more than {MAX_DEPTH} deep")
    try:
        json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise ValueError("it has a half of a surrogate pair, or a number that is none") from None
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(_readable)]
"""A JSON schema."""


class FunctionCall(BaseModel):
    """The tool that is called, and with what."""

    name: ToolName
    arguments: Text
    """The arguments as JSON."""


class ToolCall(BaseModel):
    """A call of a tool."""

    model_config = ConfigDict(extra="ignore")

    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Text | None, BeforeValidator(_joined)] = None
    """The text, or a list of parts of text; null beside calls of tools."""
    name: Annotated[str, Field(max_length=256)] | None = None
    """Name of who says it."""
    tool_calls: list[ToolCall] | None = None
    """Tools that the assistant has called."""
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    """The call that a tool answers."""

    @model_validator(mode="after")
    def _is_said(self) -> "Message":
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing; only an assistant's calls of tools have none")
        return self


class Function(BaseModel):
    """A tool's name, purpose and arguments."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    name: ToolName
    description: Text | None = None
    parameters: Schema | None = None
    """JSON schema of the arguments."""


class Tool(BaseModel):
    """A tool that the model may call."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function"]
    function: Function


class NamedFunction(BaseModel):
    """The name of a tool."""

    name: ToolName


class NamedTool(BaseModel):
    """The one tool that must be called."""

    type: Literal["function"]
    function: NamedFunction
