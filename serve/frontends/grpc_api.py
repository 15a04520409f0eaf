"""The Open Inference Protocol over gRPC; Ray Serve's gRPC proxy calls it.

Needs `pip install 'raywinnow[grpc]'`, which has the protocol's messages in NVIDIA's client.
"""

import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import grpc

from jobs.errors import DeployError
from serve.http import app
from serve.http.asgi import MAX_BODY_BYTES, body_size_error
from serve.http.errors import HttpError
from serve.http.guard import authorize, timeout_of
from serve.http.handler import error_of
from serve.http.open_inference import InferRequest, InferResponse, Tensor, named, server_metadata

ADD = "serve.frontends.grpc_api.add"
"""Import path of `add`, for Ray Serve's configuration."""
SERVICE = "inference.GRPCInferenceService"
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""gRPC status codes by HTTP status."""
OK, CANCELLED = 200, 499
"""HTTP statuses that the metrics count for an answered call, and for one that its client ended."""
ADVICE = "send an accepted token as metadata: authorization, Bearer …"
READY_TIMEOUT_S = 5.0
"""Timeout of the call that checks whether an application is ready."""
_LENGTH = struct.Struct("<I")


def messages() -> Any:
    """Imports the protocol's messages; raises DeployError if their package is not installed."""
    try:
        from tritonclient.grpc import service_pb2
    except ImportError:
        raise DeployError(
            "serve.grpc is set, but the package with its messages is missing where the endpoint"
            " runs: pip install 'raywinnow[grpc]'"
        ) from None
    return service_pb2


def add(servicer: Any, server: Any) -> None:
    """Registers the protocol's methods in a gRPC server; calls of other methods are refused."""
    types = messages()
    names = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata")
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, name),
            request_deserializer=getattr(types, f"{name}Request").FromString,
            response_serializer=getattr(types, f"{name}Response").SerializeToString,
        )
        for name in (*names, "ModelInfer")
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def answers(address: str, timeout_s: float) -> bool:
    """Returns True if a gRPC server accepts a connection at an address within `timeout_s`."""
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout_s)
        except grpc.FutureTimeoutError:
            return False
    return True


def is_ready(address: str, application: str) -> bool:
    """Returns True if an application of Ray Serve is ready behind the proxy at an address."""
    types = messages()
    with grpc.insecure_channel(address) as channel:
        server_ready = channel.unary_unary(
            f"/{SERVICE}/ServerReady",
            request_serializer=types.ServerReadyRequest.SerializeToString,
            response_deserializer=types.ServerReadyResponse.FromString,
        )
        metadata = (("application", application),)
        request = types.ServerReadyRequest()
        try:
            answer = server_ready(request, timeout=READY_TIMEOUT_S, metadata=metadata)
            return bool(answer.ready)
        except grpc.RpcError:
            return False


class GrpcSurface:
    """The protocol's methods, answered by the handler of this process."""

    async def ServerLive(self, _: Any, grpc_context: Any) -> Any:  # noqa: N802
        """The process is alive."""
        return messages().ServerLiveResponse(live=True)

    async def ServerReady(self, _: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Returns whether the model is ready."""
        return messages().ServerReadyResponse(ready=app.current_handler() is not None)

    async def ServerMetadata(self, _: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Returns the server's name and version."""

        async def work() -> Any:
            return messages().ServerMetadataResponse(**server_metadata())

        return await _authorized("ServerMetadata", grpc_context, work)

    async def ModelReady(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Returns that the model is ready; NOT_FOUND for another name or version."""

        async def work() -> Any:
            named(request.name, request.version)
            return messages().ModelReadyResponse(ready=True)

        return await _authorized("ModelReady", grpc_context, work)

    async def ModelMetadata(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Returns the model's input and output tensors."""

        async def work() -> Any:
            metadata = named(request.name, request.version).metadata()
            return messages().ModelMetadataResponse(**metadata.model_dump())

        return await _authorized("ModelMetadata", grpc_context, work)

    async def ModelInfer(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Labels the texts of the tensor `text`."""

        async def work() -> Any:
            if request.ByteSize() > MAX_BODY_BYTES:
                raise body_size_error()
            handler = named(request.model_name, request.model_version)
            headers = {k.encode(): v.encode() for k, v in _metadata(grpc_context).items()}
            response = await handler.infer(body_of(request), timeout_of(headers))
            return message_of(response, is_raw=bool(request.raw_input_contents))

        return await _authorized("ModelInfer", grpc_context, work)


async def _authorized(method: str, context: Any, work: Callable[[], Awaitable[Any]]) -> Any:
    """Returns the result of `work` if the call's token is accepted.

    An error becomes the call's status, with an empty response.
    """
    handler, status = app.current_handler(), CANCELLED
    try:
        authorization = _metadata(context).get("authorization", "")
        authorize(app.require_handler(), authorization, ADVICE)
        response = await work()
        status = OK
        return response
    except Exception as error:  # noqa: BLE001 - no traceback reaches a client
        refusal = error_of(error)
        status = refusal.status
    finally:
        if handler:
            handler.metrics.count(f"grpc {method}", status)
    context.set_code(CODES.get(status, grpc.StatusCode.INTERNAL))
    context.set_details(refusal.message)
    return getattr(messages(), f"{method}Response")()


def _metadata(context: Any) -> dict[str, str]:
    return {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}


def body_of(request: Any) -> InferRequest:
    """Converts a gRPC request into the protocol's HTTP request; raises HttpError 422."""
    inputs = request.inputs
    if not 1 <= len(inputs) <= 2:
        raise HttpError(422, "invalid_request", "the request must have one or two inputs")
    raw = request.raw_input_contents
    if raw and len(raw) != len(inputs):
        raise HttpError(422, "invalid_request", "raw_input_contents must have one item per input")
    columns = [
        list(_pieces(raw[index])) if raw else list(tensor.contents.bytes_contents)
        for index, tensor in enumerate(inputs)
    ]
    return InferRequest(
        id=request.id[:128] or None,
        inputs=[
            Tensor(
                name=tensor.name,
                shape=list(tensor.shape),
                datatype=tensor.datatype,
                data=_texts(column),
            )
            for tensor, column in zip(inputs, columns, strict=True)
        ],
    )


def _pieces(raw: bytes) -> Iterator[bytes]:
    """Yields the strings of a raw tensor; each is preceded by its length in four bytes."""
    at = 0
    while at < len(raw):
        begin = at + _LENGTH.size
        end = begin + _LENGTH.unpack_from(raw, at)[0] if begin <= len(raw) else len(raw) + 1
        if end > len(raw):
            message = "raw_input_contents must be strings, each after its length in four bytes"
            raise HttpError(422, "invalid_request", message)
        yield raw[begin:end]
        at = end


def _texts(column: Sequence[bytes]) -> list[str]:
    try:
        return [piece.decode() for piece in column]
    except UnicodeDecodeError:
        raise HttpError(422, "invalid_request", "texts must be UTF-8") from None


def message_of(response: InferResponse, *, is_raw: bool) -> Any:
    """Converts a response into the gRPC message; with raw tensors if the request had raw ones."""
    message = messages().ModelInferResponse(
        id=response.id or "", model_name=response.model_name, model_version=response.model_version
    )
    for tensor in response.outputs:
        output = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        is_text = tensor.datatype == "BYTES"
        if is_raw and is_text:
            encoded = [text.encode() for text in tensor.data]
            message.raw_output_contents.append(
                b"".join(_LENGTH.pack(len(piece)) + piece for piece in encoded)
            )
        elif is_raw:
            message.raw_output_contents.append(struct.pack(f"<{len(tensor.data)}f", *tensor.data))
        elif is_text:
            output.contents.bytes_contents.extend(text.encode() for text in tensor.data)
        else:
            output.contents.fp32_contents.extend(tensor.data)
    return message
