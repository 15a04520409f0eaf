"""Messages of completions, a subset of OpenAI's older API: a plain text is continued."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from serve.tasks.causal_lm.generation_request import (
    MAX_CHARACTERS,
    MAX_LIKELIEST,
    GenerationRequest,
    TokenId,
    Usage,
)
from serve.tasks.causal_lm.honoured import Only
from serve.tasks.generating.schemas import Finish

COMPLETIONS_PATH = "/v1/completions"
"""Path of completions of a plain text, below the endpoint's route."""


MAX_PROMPTS, MAX_TOKENS = 32, 65_536
"""Most prompts of a request, and most tokens of one that comes as tokens."""
Prompt = (
    Annotated[str, Field(max_length=MAX_CHARACTERS)]
    | Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS)]
)


class CompletionRequest(GenerationRequest):
    """A text to continue, without any chat template; fields that change no answer are ignored."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "A superb film"}]})

    prompt: Prompt | Annotated[list[Prompt], Field(min_length=1, max_length=MAX_PROMPTS)]
    """The text to continue, or its tokens; or a list of them, each of which is continued."""
    echo: Annotated[Any, Only([False])] = False
    """Whether the answer begins with the prompt."""
    suffix: Annotated[Any, Only([""])] = ""
    """The text that follows the answer."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_LIKELIEST)] | None = None
    """Sends the log-probabilities of tokens, and of so many likely ones in their places."""

    @property
    def prompts(self) -> list[str | list[int]]:
        """Every prompt."""
        given = self.prompt
        if isinstance(given, str) or isinstance(given[0], int):
            return [given]
        return given

    @property
    def likeliest(self) -> int | None:
        """Likeliest tokens whose log-probability comes with each token; None for none at all."""
        return self.logprobs


class CompletionLogprobs(BaseModel):
    """Log-probabilities of the tokens of a continuation, one value a token in each list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]
    """Characters of the continuation before each token."""


class CompletionChoice(BaseModel):
    """The continuation of a text, or a part of it."""

    index: int = 0
    text: str
    finish_reason: Finish | None = None
    logprobs: CompletionLogprobs | None = None


class CompletionResponse(BaseModel):
    """A complete continuation, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Annotated[Usage | None, Field(exclude_if=lambda usage: usage is None)] = None
