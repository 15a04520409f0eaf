"""Bearer tokens: read from the environment, known to replicas by their hashes alone."""

import hashlib
import hmac
import os
from collections.abc import Sequence

from jobs.errors import DeployError
from jobs.spec.serve import ServeSpec


def accepted_tokens(spec: ServeSpec) -> list[str]:
    """Bearer tokens from the environment, none for an open endpoint; they stay in this process."""
    if spec.auth is None:
        return []
    tokens = os.environ.get(spec.auth.tokens_from, "").replace(",", " ").split()
    if not tokens:
        raise DeployError(
            f"serve.auth.tokens_from names {spec.auth.tokens_from}, which is not set or empty;"
            " put the accepted tokens into it, with spaces or commas between"
        )
    return tokens


def digest(token: str) -> str:
    """What replicas know of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def admits(hashes: Sequence[str], authorization: str) -> bool:
    """Whether an Authorization header carries a token with one of these hashes; none admit all."""
    if not hashes:
        return True
    scheme, _, token = authorization.partition(" ")
    offered = digest(token.strip())
    # every comparison is made, so that time tells nothing
    found = [hmac.compare_digest(offered, known) for known in hashes]
    return scheme.lower() == "bearer" and any(found)
