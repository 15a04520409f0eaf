"""Fetches on-demand and spot prices from AWS."""

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
"""Region whose API serves the price list of all regions; most regions have no such API."""
DEFAULT_REGION = "us-east-1"
QUICK = botocore.config.Config(
    connect_timeout=5, read_timeout=20, retries={"max_attempts": 3, "mode": "standard"}
)

Client = Any
"""A boto3 client; boto3 has no static types."""


def fetch(region: str | None = None) -> tuple[Quote, ...]:
    """Returns today's price of every SKU that AWS rents in a region, by default the profile's.

    Raises:
        ClusterError: without credentials, permission or network.
    """
    session = boto3.Session()
    region = region or session.region_name or DEFAULT_REGION
    try:
        pricing = session.client("pricing", region_name=PRICING_REGION, config=QUICK)
        ec2 = session.client("ec2", region_name=region, config=QUICK)
        return quotes(pricing, ec2, region)
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise ClusterError(
            f"AWS returned no prices: {error}; configure keys with the permissions"
            " pricing:GetProducts and ec2:DescribeSpotPriceHistory (`aws configure` or AWS_PROFILE)"
        ) from None


def quotes(pricing: Client, ec2: Client, region: str) -> tuple[Quote, ...]:
    """Returns a quote for each SKU that the region offers on demand or as spot."""
    now = datetime.now(UTC)
    rented = {sku.name: sku.aws for sku in catalogue.catalogue().values() if sku.aws}
    spot = _spot(ec2, sorted(machine.instance for machine in rented.values()), now)
    offered = []
    for name, machine in rented.items():
        on_demand = _on_demand(pricing, machine.instance, region)
        cheapest = spot.get(machine.instance)
        if on_demand is None and cheapest is None:
            continue
        offered.append(
            Quote(
                sku=name,
                on_demand_usd=None if on_demand is None else on_demand / machine.devices,
                spot_usd=None if cheapest is None else cheapest / machine.devices,
                source=f"AWS {region} {machine.instance}",
                date=f"{now:%Y-%m-%d}",
            )
        )
    return tuple(offered)


def _on_demand(pricing: Client, instance: str, region: str) -> float | None:
    """Returns the USD per hour of a Linux instance of shared tenancy without licences."""
    wanted = {
        "instanceType": instance,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": v} for key, v in wanted.items()]
    response = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters, MaxResults=10)
    prices = [
        float(dimension["pricePerUnit"]["USD"])
        for text in response["PriceList"]
        for term in json.loads(text)["terms"].get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
    ]
    return max(prices, default=None) or None  # offers at 0 are for reserved machines


def _spot(ec2: Client, instances: list[str], now: datetime) -> Mapping[str, float]:
    """Returns the newest USD per hour of each instance type in its cheapest zone."""
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=instances, ProductDescriptions=["Linux/UNIX"], StartTime=now
    )
    cheapest: dict[str, float] = {}
    for page in pages:
        for row in page["SpotPriceHistory"]:
            name, price = row["InstanceType"], float(row["SpotPrice"])
            cheapest[name] = min(price, cheapest.get(name, price))
    return cheapest
