"""Prices of a device hour: the job's own, else fetched from AWS, else the catalogue's."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cluster import catalogue
from jobs.errors import ClusterError
from jobs.storage import files


@dataclass(frozen=True, slots=True)
class Quote:
    """Market prices of one device of a SKU."""

    sku: str
    on_demand_usd: float | None
    """USD per hour; None if it is not offered on demand."""
    spot_usd: float | None
    """USD per hour in the cheapest zone; None if it is not offered as spot."""
    source: str
    """Cloud, region and instance type."""
    date: str
    """Day of fetching, such as 2026-01-31."""


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Fetched market prices by SKU."""

    quotes: Mapping[str, Quote]

    def price(self, sku: catalogue.Sku, own: Mapping[str, float], *, spot: bool) -> float | None:
        """Returns USD per device hour: `own`, else fetched, else the catalogue's, else None.

        Without a spot price, a spot device counts at the on-demand price, its upper bound.
        """
        named = {catalogue.find(name).name: value for name, value in own.items()}
        if sku.name in named:
            return named[sku.name]
        quote = self.quotes.get(sku.name)
        fetched = (quote.spot_usd if spot else None, quote.on_demand_usd) if quote else ()
        known = (price for price in (*fetched, sku.price_usd_per_hour) if price is not None)
        return next(known, None)


NO_QUOTES = PriceBook({})
"""A price book without fetched prices: the catalogue's prices apply."""

_QUOTES = TypeAdapter(tuple[Quote, ...])


def book_path() -> Path:
    """Returns the path of the file with fetched prices."""
    return files.home() / "prices.json"


def read_book() -> PriceBook:
    """Read the fetched prices; an empty book if none were fetched.

    Raises:
        ClusterError: if the file cannot be read.
    """
    path = book_path()
    try:
        quotes = _QUOTES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return NO_QUOTES
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not valid"
        raise ClusterError(
            f"prices {path} cannot be read: {reason}; delete it, or fetch them again"
            " with `winnow hardware --refresh-prices`"
        ) from None
    return PriceBook({quote.sku: quote for quote in quotes})


def write_book(quotes: tuple[Quote, ...]) -> None:
    """Replace the file of fetched prices.

    Raises:
        StorageError: if the file cannot be written; its earlier content then stays.
    """
    files.write_atomically(book_path(), _QUOTES.dump_json(quotes, indent=2) + b"\n")
