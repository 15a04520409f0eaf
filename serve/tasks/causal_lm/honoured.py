"""Fields of clients' requests that this endpoint honours with their usual values alone."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic_core import core_schema


class Only:
    """Marks a field that asks for what this endpoint cannot do, unless it has a usual value."""

    def __init__(self, usual: Sequence[Any]) -> None:
        self.usual = tuple(usual)

    def __get_pydantic_core_schema__(self, _: Any, __: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, _: Any, __: Any) -> dict[str, Any]:
        return {"enum": list(self.usual)}

    def _checked(self, value: Any) -> Any:
        if (value, type(value) is bool) not in [(each, type(each) is bool) for each in self.usual]:
            shown = " or ".join(json.dumps(each) for each in self.usual)
            known = f"honours {shown} alone" if self.usual else "does not honour it"
            raise ValueError(f"this endpoint {known}; leave it out")
        return value


def without_nulls(fields: Any) -> Any:
    """Leaves out fields that are null, which clients send for defaults."""
    if not isinstance(fields, dict):
        return fields
    return {name: value for name, value in fields.items() if value is not None}
