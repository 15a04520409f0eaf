"""What an hour costs: own prices, fetched ones, the catalogue's; and fetching them."""

import json
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.stub import ANY, Stubber

from cluster import aws, catalogue, prices
from cluster.inventory import Inventory, Node
from cluster.placement import place
from cluster.prices import NO_QUOTES, PriceBook, Quote
from jobs.errors import ClusterError, InfeasibleError
from jobs.spec.quantities import AcceleratorRequest

FETCHED = PriceBook({"T4": Quote("T4", 0.6, 0.2, "AWS us-east-1 g4dn.xlarge", "2026-11-21")})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "own", "book", "market", "expected"),
    [
        ("RTX3090", {}, NO_QUOTES, "on demand", None),
        ("RTX3090", {"rtx-3090": 0.25}, NO_QUOTES, "on demand", 0.25),
        ("T4", {"RTX3090": 0.25}, NO_QUOTES, "on demand", 0.526),
        ("T4", {}, FETCHED, "on demand", 0.6),
        ("T4", {}, FETCHED, "spot", 0.2),
        ("T4", {"t4": 0.1}, FETCHED, "spot", 0.1),
        ("L4", {}, FETCHED, "spot", 0.8048),
    ],
)
def test_the_nearest_price_wins(
    name: str, own: dict[str, float], book: PriceBook, market: str, expected: float | None
) -> None:
    assert book.price(catalogue.find(name), own, spot=market == "spot") == expected


def test_fetched_prices_are_kept(home: Path) -> None:
    assert prices.read_book() == NO_QUOTES
    prices.write_book(tuple(FETCHED.quotes.values()))
    assert prices.read_book() == FETCHED
    assert [path.name for path in home.iterdir()] == ["prices.json"]
    (home / "prices.json").write_text("[{")
    with pytest.raises(ClusterError, match=r"prices\.json cannot be read: it is not valid"):
        prices.read_book()


SPOT_AND_NOT = Inventory((Node("a", "T4", 2, spot=True), Node("b", "T4", 1)))


def test_a_placement_keeps_to_spot_nodes_or_off_them() -> None:
    expected = {
        None: (("a", "b"), 0.6, "T4:1"),
        True: (("a",), 0.2, "T4:1-spot"),
        False: (("b",), 0.6, "T4:1-on-demand"),
    }
    for spot, (nodes, price, name) in expected.items():
        found = place(AcceleratorRequest("T4"), SPOT_AND_NOT, {}, spot=spot, book=FETCHED)
        assert (found.node_ids, found.price_usd_per_hour, found.name) == (nodes, price, name)


def test_missing_spot_nodes_are_named() -> None:
    with pytest.raises(InfeasibleError, match="no spot nodes for T4:3"):
        place(AcceleratorRequest("T4", 3), SPOT_AND_NOT, {}, spot=True)


@pytest.fixture
def answers() -> Iterator[tuple[Stubber, Stubber]]:
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "key", "region_name": "us-east-1"}
    with (
        Stubber(boto3.client("pricing", **keys)) as pricing,
        Stubber(boto3.client("ec2", **keys)) as ec2,
    ):
        yield pricing, ec2


def offer(usd: str) -> str:
    dimension = {"pricePerUnit": {"USD": usd}}
    return json.dumps({"terms": {"OnDemand": {"a": {"priceDimensions": {"b": dimension}}}}})


def test_prices_of_whole_machines_are_shared_among_their_devices(
    answers: tuple[Stubber, Stubber],
) -> None:
    pricing, ec2 = answers
    rented = [sku for sku in catalogue.catalogue().values() if sku.aws]
    spot = [("p4d.24xlarge", "16.0"), ("p4d.24xlarge", "8.0"), ("g4dn.xlarge", "0.2")]
    rows = [{"InstanceType": name, "SpotPrice": price} for name, price in spot]
    ec2.add_response(
        "describe_spot_price_history",
        {"SpotPriceHistory": rows},
        {"InstanceTypes": ANY, "ProductDescriptions": ["Linux/UNIX"], "StartTime": ANY},
    )
    for sku in rented:
        offers = [offer("0.0"), offer("24.0")] if sku.name == "A100-40GB" else []
        expected = {"ServiceCode": "AmazonEC2", "Filters": ANY, "MaxResults": ANY}
        pricing.add_response("get_products", {"PriceList": offers}, expected)
    found = {quote.sku: quote for quote in aws.quotes(pricing.client, ec2.client, "eu-west-1")}
    assert (found["A100-40GB"].on_demand_usd, found["A100-40GB"].spot_usd) == (3.0, 1.0)
    assert (found["T4"].on_demand_usd, found["T4"].spot_usd) == (None, 0.2)
    assert set(found) == {"A100-40GB", "T4"}


def test_without_keys_the_reason_and_the_cure_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ClusterError, match=r"Unable to locate credentials.*aws configure"):
        aws.fetch()
