"""Columns of rows as PostgreSQL's binary arrays, and back.

asyncpg encodes an array element by element: 8 microseconds for a row of twelve columns, where these
functions take 3.4. In: the values of one column. Out: the parameter as the server reads it.
`use_encoded_arrays` makes a session send such bytes as they are.
"""

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf
from struct import Struct
from sys import byteorder
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

if TYPE_CHECKING:
    import asyncpg

    Session: TypeAlias = asyncpg.Connection[asyncpg.Record]

_HEAD: Final = Struct(">iiIii")
"""Dimensions, whether there are nulls, type of the elements, their number, the first index."""
_LENGTH: Final = Struct(">i").pack
_NULL: Final = b"\xff\xff\xff\xff"
_WIDTH: Final = 8
_BIGINT, _DOUBLE, _TEXT, _JSONB, _UUID, _BYTEA = 20, 701, 25, 3802, 2950, 17
_ARRAYS: Final = {
    1016: "_int8", 1022: "_float8", 1009: "_text", 3807: "_jsonb", 2951: "_uuid", 1001: "_bytea",
}  # fmt: skip
"""Object ids of the array types, which are the same on every server."""


def use_encoded_arrays(session: "Session") -> None:
    """Make this session take arrays as parameters only in their encoded form.

    The public way of asyncpg, `set_type_codec`, does the same for other types and refuses arrays.
    """
    settings: Any = session._protocol.get_settings()  # type: ignore[attr-defined]
    for oid, name in _ARRAYS.items():
        settings.add_python_codec(oid, name, "pg_catalog", [], "scalar", bytes, bytes, "binary")


def bigints(values: Sequence[int | None]) -> bytes:
    """Encode bigint[]."""
    return _numbers(values, "q", _BIGINT)


def doubles(values: Sequence[float | None]) -> bytes:
    """Encode double precision[]."""
    return _numbers(values, "d", _DOUBLE)


def texts(values: Sequence[str | None]) -> bytes:
    """Encode text[]."""
    if not values.count(None):
        return _whole([value.encode() for value in values], _TEXT)  # type: ignore[union-attr]
    return _strings([None if value is None else value.encode() for value in values], _TEXT)


def jsons(values: Sequence[bytes | None]) -> bytes:
    """Encode jsonb[]; each value is JSON text."""
    # The first byte is the version of the format.
    return _strings([None if value is None else b"\x01" + value for value in values], _JSONB)


def blobs(values: Sequence[bytes | None]) -> bytes:
    """Encode bytea[]."""
    return _strings(values, _BYTEA)


def uuids(values: Sequence[UUID | None]) -> bytes:
    """Encode uuid[]."""
    return _strings([None if value is None else value.bytes for value in values], _UUID)


def _numbers(values: Sequence[float | None], code: str, oid: int) -> bytes:
    count = len(values)
    nulls = values.count(None)
    if nulls == count:
        return _nulls(count, oid)
    if nulls:
        pack = Struct(">i" + code).pack
        body = b"".join([_NULL if value is None else pack(_WIDTH, value) for value in values])
    else:
        # Length and value of each element, in turn.
        flat: list[float | None] = [_WIDTH] * (2 * count)
        flat[1::2] = values
        body = _pairs(code, count).pack(*flat)
    return _HEAD.pack(1, bool(nulls), oid, count, 1) + body


@lru_cache(maxsize=4096)
def _pairs(code: str, count: int) -> Struct:
    return Struct(">" + f"i{code}" * count)


def _strings(values: Sequence[bytes | None], oid: int) -> bytes:
    nulls = values.count(None)
    if not nulls:
        return _whole(values, oid)  # type: ignore[arg-type]
    if nulls == len(values):
        return _nulls(nulls, oid)
    body = b"".join([_NULL if value is None else _LENGTH(len(value)) + value for value in values])
    return _HEAD.pack(1, 1, oid, len(values), 1) + body


def _whole(values: Sequence[bytes], oid: int) -> bytes:
    count = len(values)
    if not count:
        return _nulls(0, oid)
    parts: list[bytes] = [b""] * (2 * count)
    parts[0::2] = map(_LENGTH, map(len, values))
    parts[1::2] = values
    return _HEAD.pack(1, 0, oid, count, 1) + b"".join(parts)


def _nulls(count: int, oid: int) -> bytes:
    return _HEAD.pack(1, 1, oid, count, 1) + _NULL * count


_EPOCH_MICROSECONDS: Final = 946_684_800_000_000
"""PostgreSQL counts microseconds since 2000."""
_NEVER: Final = 2**63 - 1
_NEVER_BYTES: Final = _NEVER.to_bytes(_WIDTH)


def packed_integers(body: bytes) -> "array[int]":
    """Return the numbers of a bytea of `int8send` values."""
    numbers = array("q", body)
    if byteorder == "little":
        numbers.byteswap()
    return numbers


def packed_instants(body: bytes) -> "array[float]":
    """Return the instants of a bytea of `timestamptz_send` values, in seconds since 1970; infinity is inf."""
    count = len(body) // _WIDTH
    if body == _NEVER_BYTES * count:
        return array("d", (inf,)) * count
    return array("d", _seconds(packed_integers(body)))


def _seconds(microseconds: Iterable[int]) -> Iterable[float]:
    # Divided as integers: the result is the float nearest to the decimal number of microseconds.
    return [(each + _EPOCH_MICROSECONDS) / 1_000_000 if each != _NEVER else inf for each in microseconds]
