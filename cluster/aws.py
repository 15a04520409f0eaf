"""Prices of AWS, on demand and spot, through its public interfaces."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import boto3
import botocore.config
import botocore.exceptions

from cluster import catalogue
from cluster.prices import Quote
from jobs.errors import ClusterError

PRICING_REGION = "us-east-1"
"""The price list is not served in every region; this one serves the prices of all."""
DEFAULT_REGION = "us-east-1"
QUICK = botocore.config.Config(
    connect_timeout=5, read_timeout=20, retries={"max_attempts": 3, "mode": "standard"}
)

Client = Any
"""A boto3 client; they have no static types."""


def fetch(region: str | None = None) -> tuple[Quote, ...]:
    """Today's price of every SKU that AWS has in a region, by default the session's.

    Raises ClusterError without credentials, permission or network.
    """
    session = boto3.Session()
    region = region or session.region_name or DEFAULT_REGION
    try:
        pricing = session.client("pricing", region_name=PRICING_REGION, config=QUICK)
        ec2 = session.client("ec2", region_name=region, config=QUICK)
        return quotes(pricing, ec2, region)
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise ClusterError(
            f"prices of AWS cannot be fetched: {error}; the keys need pricing:GetProducts and"
            " ec2:DescribeSpotPriceHistory (`aws configure`, or AWS_PROFILE)"
        ) from None


def quotes(pricing: Client, ec2: Client, region: str) -> tuple[Quote, ...]:
    """Quotes from the two interfaces; SKUs that the region does not offer are left out."""
    now = datetime.now(UTC)
    rented = {sku.name: sku.aws for sku in catalogue.catalogue().values() if sku.aws}
    spot = _spot(ec2, sorted(machine.instance for machine in rented.values()), now)
    found = []
    for name, machine in rented.items():
        on_demand = _on_demand(pricing, machine.instance, region)
        cheapest = spot.get(machine.instance)
        if on_demand is None and cheapest is None:
            continue
        found.append(
            Quote(
                sku=name,
                on_demand_usd=None if on_demand is None else on_demand / machine.devices,
                spot_usd=None if cheapest is None else cheapest / machine.devices,
                source=f"AWS {region} {machine.instance}",
                date=f"{now:%Y-%m-%d}",
            )
        )
    return tuple(found)


def _on_demand(pricing: Client, instance: str, region: str) -> float | None:
    """USD per hour of a Linux machine that is shared and has no licence in its price."""
    wanted = {
        "instanceType": instance,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": v} for key, v in wanted.items()]
    answer = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters, MaxResults=10)
    prices = [
        float(dimension["pricePerUnit"]["USD"])
        for text in answer["PriceList"]
        for term in json.loads(text)["terms"].get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
    ]
    return max(prices, default=None) or None  # offers at 0 are for reserved machines


def _spot(ec2: Client, instances: list[str], now: datetime) -> Mapping[str, float]:
    """The newest price of each instance type in its cheapest zone."""
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=instances, ProductDescriptions=["Linux/UNIX"], StartTime=now
    )
    cheapest: dict[str, float] = {}
    for page in pages:
        for row in page["SpotPriceHistory"]:
            name, price = row["InstanceType"], float(row["SpotPrice"])
            cheapest[name] = min(price, cheapest.get(name, price))
    return cheapest
