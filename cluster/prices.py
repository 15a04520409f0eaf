"""What an hour of a device costs: the job's own price, a fetched one, or the catalogue's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cluster import catalogue
from jobs.errors import ClusterError
from jobs.storage import files


@dataclass(frozen=True, slots=True)
class Quote:
    """Market price of one device of a SKU."""

    sku: str
    on_demand_usd: float | None
    """USD per hour; None where it is not offered so."""
    spot_usd: float | None
    """USD per hour in the cheapest zone."""
    source: str
    """Who asks it, where, in which instance."""
    date: str
    """Day it was fetched."""


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Market prices that were fetched, by SKU."""

    quotes: Mapping[str, Quote]

    def price(self, sku: catalogue.Sku, own: Mapping[str, float], *, spot: bool) -> float | None:
        """USD per device hour: the job's own, else fetched, else the catalogue's; None if unknown.

        Without a spot price a spot device counts at the full one, which it does not exceed.
        """
        named = {catalogue.find(name).name: value for name, value in own.items()}
        if sku.name in named:
            return named[sku.name]
        quote = self.quotes.get(sku.name)
        fetched = (quote.spot_usd if spot else None, quote.on_demand_usd) if quote else ()
        known = (price for price in (*fetched, sku.price_usd_per_hour) if price is not None)
        return next(known, None)


NO_QUOTES = PriceBook({})
"""Nothing was fetched: the catalogue's prices hold."""

_QUOTES = TypeAdapter(tuple[Quote, ...])


def book_path() -> Path:
    """Where fetched prices are kept."""
    return files.home() / "prices.json"


def read_book() -> PriceBook:
    """Prices fetched earlier; empty where none were. Raises ClusterError for a broken file."""
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
    """Keep fetched prices, in place of earlier ones."""
    path = book_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(_QUOTES.dump_python(quotes), indent=2) + "\n", encoding="utf-8")
    beside.replace(path)
