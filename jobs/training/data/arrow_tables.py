"""Tables from Arrow: of parquet files, and of data sets of the library `datasets`."""

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from jobs.errors import DataError, first_line
from jobs.training.data.table import Table, check_titles

DATASETS_METADATA = b"huggingface"
"""Key of the metadata that `datasets` writes into a parquet file."""


def read_parquet(path: Path, name: str) -> Table:
    """Returns all rows of a parquet file; `name` stands for it in errors.

    Raises:
        DataError: if it cannot be read, or has a column twice.
    """
    try:
        found = pyarrow.parquet.read_table(path)
        check_titles(found.column_names, name)
        return of_arrow(found, _class_names_of(found.schema))
    except pa.ArrowException as error:
        raise DataError(f"{name} cannot be read: {first_line(error)}") from None


def of_arrow(table: pa.Table, class_names: Mapping[str, tuple[str, ...]] | None = None) -> Table:
    """Converts an Arrow table; booleans become `true` and `false`, bytes become UTF-8 text.

    Raises:
        pyarrow.ArrowInvalid: if text or bytes are not UTF-8.
    """
    columns = {name: _plain(table[name]) for name in table.column_names}
    return Table(columns, class_names or {})


def _class_names_of(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    try:
        return _class_names(schema)
    except (ValueError, AttributeError, KeyError, TypeError):
        return {}  # another program wrote the metadata, or a later version of `datasets`


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Returns the class names of each column of ClassLabel, or of lists of it.

    They are in the metadata of `datasets`.
    """
    metadata = json.loads((schema.metadata or {}).get(DATASETS_METADATA, b"{}"))
    features = metadata.get("info", {}).get("features", {})
    found = {}
    for name in schema.names:
        feature, kind = features.get(name, {}), schema.field(name).type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            feature, kind = feature.get("feature", {}), kind.value_type
        if pa.types.is_integer(kind) and feature.get("_type") == "ClassLabel":
            found[name] = tuple(feature["names"])
    return found


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        return _plain(column.cast(pa.large_binary()))
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if is_bytes or pa.types.is_boolean(kind):
        return column.cast(pa.large_string())
    column.validate(full=True)  # other programs may have written invalid UTF-8 into text
    return column
