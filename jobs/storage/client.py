"""The S3 client of this machine, and requests that are repeated while a server is down.

boto3 reads keys, region and endpoint from its own settings (`AWS_ACCESS_KEY_ID`,
`AWS_ENDPOINT_URL_S3` …). Encryption is set by `WINNOW_S3_SSE` (`AES256` or `aws:kms`) and
`WINNOW_S3_SSE_KEY_ID`.
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
"""How long requests to a failing server are repeated."""
BACKOFF_S = (0.1, 8.0)
"""Longest pause before the second and before any attempt; pauses are drawn uniformly below it."""
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
"""An attempt fails after this long without a byte from the server."""
PART_BYTES = 16 * 2**20
"""Files larger than this are uploaded in parts of this size."""
TRANSFERS = 4
"""Files of a folder that are transferred at the same time."""
CHANGED = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
ABSENT = {"NoSuchKey", "404", "NotFound"}
PASSING = {"RequestTimeout", "RequestTimeTooSkewed"}
"""Error codes of requests that may succeed when they are repeated."""
PASSING_STATUS = 500
"""Responses with this HTTP status or a higher one are failures of the server."""
THROTTLED_STATUS = 429


def s3() -> Any:
    """Returns the client of this process for the configured server; threads may share it."""
    return client_of(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))


@functools.cache
def client_of(_: str | None) -> Any:
    """Makes a client for an endpoint; the argument is the cache's key, boto3 reads it itself."""
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
    """Returns the settings of multipart uploads."""
    import boto3.s3.transfer

    return boto3.s3.transfer.TransferConfig(
        multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=TRANSFERS
    )


def encryption() -> dict[str, str]:
    """Returns the arguments of a write that ask the server to encrypt the object."""
    kind, key = os.environ.get("WINNOW_S3_SSE"), os.environ.get("WINNOW_S3_SSE_KEY_ID")
    found = {"ServerSideEncryption": kind} if kind else {}
    return {**found, "SSEKMSKeyId": key} if kind and key else found


def with_retries(
    failure: str, request: Callable[[], Result], patience_s: float, **answers: None
) -> Any:
    """Sends a request, and repeats it for `patience_s` while the server fails.

    `answers` names kinds of errors (`absent`, `changed`) that count as a result, with their value.

    Raises:
        StorageError: beginning with `failure`, if the request is refused or the patience ends.
    """
    import boto3.exceptions
    import botocore.exceptions

    deadline = time.monotonic() + patience_s
    for attempt in itertools.count():
        try:
            return request()
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
            raise StorageError(f"{failure}: {reason}", is_passing=kind == "passing")
        time.sleep(random.uniform(0, min(BACKOFF_S[1], BACKOFF_S[0] * 2**attempt)))
    raise AssertionError("endless")


def classify_error(error: Exception) -> tuple[str, str]:
    """Returns the kind of an error (absent, changed, passing or refused) and its reason in words.

    Passing errors may disappear when the request is repeated.
    """
    import boto3.exceptions
    import botocore.exceptions

    if isinstance(error, boto3.exceptions.S3UploadFailedError) and error.__context__:
        error = error.__context__  # boto3 wraps the error that has the code
    if isinstance(error, botocore.exceptions.ClientError):
        return _kind(error), _reason(error)
    permanent = (
        botocore.exceptions.NoCredentialsError,
        botocore.exceptions.PartialCredentialsError,
        botocore.exceptions.CredentialRetrievalError,
        botocore.exceptions.ParamValidationError,
        botocore.exceptions.ProfileNotFound,
        botocore.exceptions.NoRegionError,
    )
    return "refused" if isinstance(error, permanent) else "passing", first_line(error)


def _kind(error: Any) -> str:
    """Returns the kind of an error response: absent, changed, passing or refused."""
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
