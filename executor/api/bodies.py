"""Reads request bodies: bounded while they arrive, then as strictly as a message (`common.requests`).

In: bytes of any content type. Out: the typed body that a route declares, or a `Refusal` that names field and
remedy. A body above the limit is read to its end and dropped, so that its client still receives the response.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema
from starlette.requests import ClientDisconnect

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import read_json, read_model

LIST_BYTES_MAX: Final = 8 * 1024 * 1024
"""Largest body that is a list."""
_SMALL_BYTES_MAX: Final = 64 * 1024
_DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024
_ARRIVAL_TIMEOUT_SECONDS: Final = 30.0


class StrictModel(BaseModel):
    """Parameters or a body without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class JsonBody(StrictModel):
    """A body that `JsonRoute` reads."""

    bytes_max: ClassVar[int] = _SMALL_BYTES_MAX


class DefinitionFields(JsonBody):
    """Fields of a definition, checked as a whole with the name in the path and the stored fields."""

    model_config = ConfigDict(extra="allow", frozen=True)
    definition: ClassVar[type[BaseModel]]

    @classmethod
    def __get_pydantic_json_schema__(cls, _: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(cls.definition.__pydantic_core_schema__))
        # Every field has a default or is kept.
        return {key: part for key, part in schema.items() if key != "required"} | {"title": cls.__name__}

    @property
    def given(self) -> Mapping[str, Any]:
        """The fields of the request."""
        return self.model_extra or {}


class JsonRoute(APIRoute):
    """A route whose body, a `JsonBody`, is JSON whatever its content type says.

    The framework's own reader accepts what cannot be stored, like NaN, and rejects JSON without its header.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, behind the reader of the body."""
        handle = super().get_route_handler()
        field = self.body_field
        if field is None:
            return handle
        model = field.field_info.annotation
        assert isinstance(model, type)
        assert issubclass(model, JsonBody)

        async def read_and_handle(request: Request) -> Response:
            body = await read_body(request, bytes_max=model.bytes_max)
            if not body and not field.field_info.is_required():
                body = b"{}"
            value = read_model(model, read_json(body, bytes_max=model.bytes_max))
            return await handle(_ReadRequest(request, value))

        return read_and_handle


class _ReadRequest(Request):
    """A request whose body was read: a checked model."""

    def __init__(self, request: Request, value: BaseModel) -> None:
        headers = [(name, text) for name, text in request.scope["headers"] if name != b"content-type"]
        json_header = (b"content-type", b"application/json")
        super().__init__({**request.scope, "headers": [*headers, json_header]}, request.receive)
        self._value = value

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> Any:
        return self._value


async def read_body(request: Request, *, bytes_max: int) -> bytes:
    """Return the body; raises Refusal if it is larger than `bytes_max` or does not arrive in time."""
    try:
        async with asyncio.timeout(_ARRIVAL_TIMEOUT_SECONDS):
            return await _arriving(request, bytes_max)
    except TimeoutError:
        raise Refusal(
            Code.INVALID_MESSAGE, f"body: did not arrive within {_ARRIVAL_TIMEOUT_SECONDS:g} s"
        ) from None
    except ClientDisconnect:
        raise Refusal(Code.INVALID_MESSAGE, "body: the connection closed before its end") from None


async def _arriving(request: Request, bytes_max: int) -> bytes:
    body, arrived_bytes = bytearray(), 0
    async for part in request.stream():
        arrived_bytes += len(part)
        if arrived_bytes <= bytes_max:
            body += part
        elif arrived_bytes > _DISCARDED_BYTES_MAX:
            break
        else:
            body.clear()
    if arrived_bytes > bytes_max:
        raise Refusal(
            Code.TOO_LARGE,
            f"body: at least {arrived_bytes} bytes, at most {bytes_max} are allowed; "
            "send a reference instead",
        )
    return bytes(body)


def in_utf8(header: str) -> str:
    """Return a header as its sender wrote it; raises ValueError if that is not UTF-8.

    The server decodes the bytes of headers as Latin-1.
    """
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        raise ValueError("not UTF-8; send text in UTF-8, or only ASCII letters and digits") from None


InUtf8: TypeAlias = Annotated[str, AfterValidator(in_utf8)]
