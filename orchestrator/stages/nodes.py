"""Asks Ray's autoscaler for nodes. Thin shell over Ray."""

import contextlib
from collections.abc import Sequence

import ray.autoscaler.sdk
import ray.exceptions

from orchestrator.decisions.demand import Bundle


def ask(bundles: Sequence[Bundle]) -> None:
    """Let there be room for these, and keep it until something else is asked for.

    Nodes beyond them go when they have been idle for as long as the cluster's own settings say.
    """
    ray.autoscaler.sdk.request_resources(
        bundles=[dict(bundle.resources) for bundle in bundles],
        bundle_label_selectors=[dict(bundle.selector) for bundle in bundles],
    )


def let_go() -> None:
    """Ask for nothing any more; a head that is gone has forgotten it anyway."""
    with contextlib.suppress(ray.exceptions.RayError, RuntimeError, ConnectionError):
        ray.autoscaler.sdk.request_resources(bundles=[])
