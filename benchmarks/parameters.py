"""Parameters: what the check of a request against the schemas of its action costs the executor.

Out: the time per request of the check, and of the reading of the same request, to which it adds. One process
and no server.
"""

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from statistics import median
from typing import Any, Final

from pydantic import BaseModel

from benchmarks.report import Aim, Row, Section
from benchmarks.system import Servers, Sizes
from turnstile.common.requests import read_requested_body
from turnstile.executor.leader.command_rows import request_of
from turnstile.executor.parameter_check import SchemaChecker
from turnstile.worker.parameters import schemas_of_function

ROUNDS: Final = 5
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


async def measure(_: Servers, sizes: Sizes) -> list[Section]:
    """Read and check the same requests, in turn."""
    rows = []
    for name, (function, parameters) in _BODIES.items():
        body = json.dumps({"action_ref": "a", "parameters": parameters}).encode()
        schema = schemas_of_function(function).parameters
        assert schema is not None
        checker = SchemaChecker(schema, is_converted=True)
        reading, checking = [], []
        for _round in range(ROUNDS):
            reading.append(_reading(body, sizes.messages))
            checking.append(_checking(checker, body, sizes.messages))
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
            title=f"parameters: {sizes.messages:,} requests, one process, no server",
            columns=(_READ, _CHECK, _RATIO),
            rows=tuple(rows),
            note=f"medians of {ROUNDS} runs each, interleaved; read: JSON to a request with its hash",
        )
    ]


def _reading(body: bytes, requests: int) -> float:
    began = time.perf_counter()
    for _ in range(requests):
        request_of(read_requested_body(body), traceparent=None)
    return 1e6 * (time.perf_counter() - began) / requests


def _checking(checker: SchemaChecker, body: bytes, requests: int) -> float:
    parameters = read_requested_body(body).parameters
    began = time.perf_counter()
    for _ in range(requests):
        assert checker.fits(parameters)
    return 1e6 * (time.perf_counter() - began) / requests
