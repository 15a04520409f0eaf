"""What requests for text have in common: how it is written, and what of it is sent."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from serve.tasks.causal_lm.honoured import Only, without_nulls

MAX_CHARACTERS = 65_536
"""Most characters of one text."""
MAX_STOPS, MAX_STOP_CHARACTERS = 4, 64
"""Most stop texts of a request, and most characters of one."""
MAX_ANSWER_TOKENS = 4096
"""Most tokens of an answer."""
SEEDS = 2**63
"""Number of different seeds."""
DEFAULT_ANSWER_TOKENS = 256
MAX_CHOICES, MAX_BIASES = 16, 300
"""Most answers to one request, and most tokens whose logits it changes."""
COLD = 1e-5
"""A lower temperature selects the most likely token; scores divided by it could overflow."""
MAX_LIKELIEST = 20
"""Most likely tokens that are sent with each token."""


class StreamOptions(BaseModel):
    """Optional parts of a stream."""

    include_usage: bool = False


TokenId = Annotated[int, Field(ge=0)]
"""Number of a token."""
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
    n: Annotated[int, Field(strict=True, ge=1, le=MAX_CHOICES)] = 1
    """Number of answers; with a seed, each further answer has the next seed."""
    best_of: Annotated[Any, Only([1])] = 1
    """Number of answers of which the best is sent."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Subtracted from the logit of a token for each time that it occurs in the answer."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Subtracted from the logit of a token that occurs in the answer."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=2)] | None = None
    """Divides positive logits of tokens that occur in prompt or answer, and multiplies negative
    ones, as vLLM does; the default is the model's."""
    logit_bias: Annotated[
        dict[TokenId, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)
    ] = {}
    """Added to the logits of tokens, by their numbers."""
    top_k: Annotated[int, Field(strict=True, ge=-1)] = -1
    """Likeliest tokens of which one is drawn, as vLLM does; -1 or 0 for all."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Least probability of a token that is drawn, as a share of the likeliest one's, as vLLM
    does."""
    min_tokens: Annotated[int, Field(strict=True, ge=0)] = 0
    """Tokens of the answer before which the end token is not selected, as vLLM does."""
    ignore_eos: bool = False
    """Writes on behind an end token, as vLLM does."""
    guided_json: Annotated[Any, Only([])] = None
    """vLLM's older name of a `response_format`."""
    guided_regex: Annotated[Any, Only([])] = None
    """vLLM's regular expression of the answer."""
    guided_choice: Annotated[Any, Only([])] = None
    """vLLM's list of possible answers."""
    guided_grammar: Annotated[Any, Only([])] = None
    """vLLM's grammar of the answer."""
    structured_outputs: Annotated[Any, Only([])] = None
    """vLLM's constraints of the answer."""

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
    def likeliest(self) -> int | None:
        """Likeliest tokens whose log-probability comes with each token; None for none at all."""
        raise NotImplementedError

    @property
    def heat(self) -> float:
        """The temperature with which tokens are sampled; 0 if the most likely one is selected."""
        return self.temperature if self.top_p and self.temperature >= COLD else 0.0


class Usage(BaseModel):
    """Tokens of the prompt and of the answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
