"""Checks the tokens, tags, texts and spans of local rows before anything is trained."""

from collections.abc import Iterator, Mapping

from jobs.errors import DataError, listed, shown
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.token_classification import columns, tags
from jobs.tasks.token_classification.task import TokenData
from jobs.training.data import texts
from jobs.training.data.checks import RowChecks, source_of
from jobs.training.data.table import Table


class TokenChecks(RowChecks):
    """Tags follow a scheme, spans lie in their texts, and both splits have the same entities."""

    def columns(self, data: DataSpec) -> tuple[tuple[str, str], ...]:
        """Tokens and tags, or text and spans."""
        own = _own(data)
        if own.text is not None and own.spans is not None:
            return ("text", own.text), ("spans", own.spans)
        return ("tokens", own.tokens), ("tags", own.tags)

    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Raise DataError for values that are no tokens, tags, texts or spans."""
        if field == "text":
            texts.read(rows, name, source.shown, may_be_empty=False)
        elif field == "spans":
            columns.read_spans(rows, name, source.shown)
        else:
            found = columns.read_lists(rows, name, source.shown, field)
            if field == "tags":
                tags.to_bio(found, source.shown)

    def across_splits(
        self, data: DataSpec, found: Mapping[str, Table]
    ) -> Iterator[tuple[str, str]]:
        """Tokens have tags, spans lie in texts, and evaluation rows have no entity of their own."""
        own, entities = _own(data), dict[str, set[str]]()
        for split, rows in found.items():
            source = source_of(data, split)
            try:
                entities[split] = _entities(own, rows, source.shown)
            except DataError as error:
                yield "spans" if own.spans else "tags", str(error)
                return
        field, train = "spans" if own.spans else "tags", entities.get("train")
        if train is None:
            return
        if not train:
            yield field, f"{data.train.shown} has no entity to learn"
        elif unknown := sorted(entities.get("eval", set()) - train):
            known = listed(sorted(train))
            yield (
                field,
                f"{data.eval.shown} has the entity {shown(unknown[0])}, which is not among those of"
                f" the training rows ({known})",
            )


CHECKS = TokenChecks()


def _entities(data: TokenData, rows: Table, name: str) -> set[str]:
    """Returns the entities of a split; raises DataError where columns do not fit each other."""
    if data.text is not None and data.spans is not None:
        spans = columns.read_spans(rows, data.spans, name)
        columns.check_spans(texts.read(rows, data.text, name), spans, name)
        return {span.label for row in spans for span in row}
    tokens = columns.read_lists(rows, data.tokens, name, "tokens")
    own = columns.read_lists(rows, data.tags, name, "tags")
    columns.check_lengths(tokens, own, name)
    return {tag[2:] for row in own for tag in row if tag != tags.OUTSIDE}


def _own(data: DataSpec) -> TokenData:
    assert isinstance(data, TokenData)
    return data
