"""Parts of messages that endpoints share which write text."""

from typing import Literal

Finish = Literal["stop", "length"]
"""`stop`: the model or a stop text ended the answer; `length`: its tokens ran out, or the time of a
language model's answer."""
