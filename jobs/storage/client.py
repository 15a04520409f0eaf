"""S3 as this machine reaches it: the client, and calls that outlive a server's bad minutes.

Keys, region and endpoint come from boto3's own settings (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL_S3`
…), encryption from `WINNOW_S3_SSE` (`AES256` or `aws:kms`) and `WINNOW_S3_SSE_KEY_ID`.
"""

import functools
import itertools
import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from jobs.errors import StorageError, first_line

Result = TypeVar("Result")

PATIENCE_S = 60.0
"""How long a server that fails is asked again."""
BACKOFF_S = (0.1, 8.0)
"""Longest pause before the first and before any later attempt; each is drawn evenly below it."""
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
"""Silence after which an attempt is given up."""
PART_BYTES = 16 * 2**20
"""Larger files go up in parts of this size."""
TRANSFERS = 4
"""Files of a folder that are under way at once."""
CHANGED = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
ABSENT = {"NoSuchKey", "404", "NotFound"}
PASSING = {"RequestTimeout", "RequestTimeTooSkewed"}
"""Refusals that a later attempt may not meet."""
PASSING_STATUS = 500
"""HTTP status from which on an answer is the server's trouble."""
THROTTLED_STATUS = 429


def s3() -> Any:
    """One client for each process and server; safe for threads."""
    return client_of(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))


@functools.cache
def client_of(_: str | None) -> Any:
    """A client; boto3 reads the endpoint from the environment itself."""
    import boto3
    import botocore.config

    config = botocore.config.Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": 3, "mode": "standard"},
        max_pool_connections=4 * TRANSFERS,
    )
    return boto3.session.Session().client("s3", config=config)


def transfer_config() -> Any:
    """How large files go up."""
    import boto3.s3.transfer

    return boto3.s3.transfer.TransferConfig(
        multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=TRANSFERS
    )


def encryption() -> dict[str, str]:
    """What a write says about it."""
    kind, key = os.environ.get("WINNOW_S3_SSE"), os.environ.get("WINNOW_S3_SSE_KEY_ID")
    found = {"ServerSideEncryption": kind} if kind else {}
    return {**found, "SSEKMSKeyId": key} if kind and key else found


def with_retries(what: str, act: Callable[[], Result], patience_s: float, **answers: None) -> Any:
    """Act until it works, `answers` telling which refusals are one.

    `what` says what cannot be done otherwise. Raises StorageError.
    """
    import boto3.exceptions
    import botocore.exceptions

    deadline = time.monotonic() + patience_s
    for attempt in itertools.count():
        try:
            return act()
        except (
            botocore.exceptions.ClientError,
            botocore.exceptions.BotoCoreError,
            boto3.exceptions.Boto3Error,
            ConnectionError,
        ) as error:
            kind, reason = classify_error(error)
        if kind in answers:
            return answers[kind]
        if kind != "passing" or time.monotonic() > deadline:
            raise StorageError(f"{what}: {reason}", is_passing=kind == "passing")
        time.sleep(random.uniform(0, min(BACKOFF_S[1], BACKOFF_S[0] * 2**attempt)))
    raise AssertionError("endless")


def classify_error(error: Exception) -> tuple[str, str]:
    """Whether a failure is absent, changed, passing or refused, and its reason in words."""
    import boto3.exceptions
    import botocore.exceptions

    if isinstance(error, boto3.exceptions.S3UploadFailedError) and error.__context__:
        error = error.__context__  # what it wraps
    if isinstance(error, botocore.exceptions.ClientError):
        return _kind(error), _reason(error)
    lasting = (
        botocore.exceptions.NoCredentialsError,
        botocore.exceptions.PartialCredentialsError,
        botocore.exceptions.CredentialRetrievalError,
        botocore.exceptions.ParamValidationError,
        botocore.exceptions.ProfileNotFound,
        botocore.exceptions.NoRegionError,
    )
    return "refused" if isinstance(error, lasting) else "passing", first_line(error)


def _kind(error: Any) -> str:
    """What an answer of the server means: absent, changed, passing or refused."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in ABSENT:
        return "absent"
    if code in CHANGED:
        return "changed"
    is_passing = status >= PASSING_STATUS or status == THROTTLED_STATUS or code in PASSING
    return "passing" if is_passing else "refused"


def _reason(error: Any) -> str:
    details = error.response.get("Error", {})
    return str(details.get("Message") or details.get("Code") or error)
