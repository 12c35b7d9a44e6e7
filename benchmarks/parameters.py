"""Parameters: what the check of a request against the schemas of its action costs the executor.

Out: the time per request of the check, and of the reading of the same request, to which it adds. One process
and no server.
"""

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from statistics import median
from typing import Any, Final, cast

from pydantic import BaseModel

from benchmarks.report import Aim, Row, Section
from benchmarks.system import Servers, Sizes
from turnstile.common.requests import read_requested_body, request_hash
from turnstile.executor.parameter_schemas import ParameterSchemas
from turnstile.executor.protocol import CheckedAction, ExecutorProtocol, ReadSchemas
from turnstile.executor.results import Admission
from turnstile.worker.parameters import schemas_of_function

ROUNDS: Final = 5
BATCH: Final = 100
"""Requests that are checked together."""
_AIM_MICROSECONDS: Final = 15.0
_READ: Final = "read"
_CHECK: Final = "check"
_RATIO: Final = "ratio"
_SMALL: Final = "two fields"


class _Line(BaseModel):
    article: str
    count: int
    price: float


def _small(customer_id: int, note: str = "") -> None: ...


def _large(customer_id: int, at: datetime, lines: list[_Line]) -> None: ...


_BODIES: Final[Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]]] = {
    _SMALL: (_small, {"customer_id": 17, "note": "express"}),
    "a time and 100 objects": (
        _large,
        {
            "customer_id": 17,
            "at": "2030-01-31T09:00:00Z",
            "lines": [{"article": f"a-{n}", "count": n, "price": n / 7} for n in range(100)],
        },
    ),
}


class _Stored:
    """Stands for the database: an action whose schema was read once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._schema = schemas_of_function(function).parameters

    async def read_schemas(self, version: str | None, known_keys: object) -> ReadSchemas | None:
        if version is not None:
            return None
        return ReadSchemas("1", [CheckedAction("a", None, ("derived 1",))], {"derived 1": self._schema})


async def measure(_: Servers, sizes: Sizes) -> list[Section]:
    """Read and check the same requests, in turn."""
    rows = []
    for name, (function, parameters) in _BODIES.items():
        body = json.dumps({"action_ref": "a", "parameters": parameters}).encode()
        schemas = ParameterSchemas(cast(ExecutorProtocol, _Stored(function)))
        reading, checking = [], []
        for _round in range(ROUNDS):
            reading.append(_reading(body, sizes.messages))
            checking.append(await _checking(schemas, body, sizes.messages))
        cells = {_READ: median(reading), _CHECK: median(checking)}
        aims = (Aim(at_most=_AIM_MICROSECONDS, columns=(_CHECK,)),) if name == _SMALL else ()
        rows.append(
            Row(
                name=name,
                unit="µs per request",
                cells={**cells, _RATIO: cells[_CHECK] / cells[_READ]},
                aims=aims,
            )
        )
    return [
        Section(
            title=f"parameters: {sizes.messages:,} requests in batches of {BATCH}, one process, no server",
            columns=(_READ, _CHECK, _RATIO),
            rows=tuple(rows),
            note=f"medians of {ROUNDS} runs each, interleaved; read: JSON to an admission with its hash",
        )
    ]


def _reading(body: bytes, requests: int) -> float:
    began = time.perf_counter()
    for _ in range(requests):
        request = read_requested_body(body)
        Admission.of(request, request_hash(request))
    return 1e6 * (time.perf_counter() - began) / requests


async def _checking(schemas: ParameterSchemas, body: bytes, requests: int) -> float:
    request = read_requested_body(body)
    batch = [Admission.of(request, request_hash(request))] * BATCH
    await schemas.refusals(batch)
    began = time.perf_counter()
    for _ in range(requests // BATCH):
        assert not await schemas.refusals(batch)
    return 1e6 * (time.perf_counter() - began) / (requests // BATCH * BATCH)
