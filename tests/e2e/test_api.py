"""The API of a real system: its answers match its description.

Whole services: the description is compared with what the running executor answers.
"""

import asyncio
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, strategies
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
CASES = 3
"""For each route, and as many against its description."""
FUZZING_SECONDS = 4.0
LEFT_OUT = {
    "/api/v1/events",  # has no end
    "/api/v1/tokens",  # the first token closes an installation that needs none
}


async def test_every_answer_matches_the_description_of_the_api(env: Environment) -> None:
    await env.put("fuzzed", max_concurrent=1, pool="unserved")
    ids = [await env.submit("fuzzed") for _ in range(3)]
    await env.cancel(ids[0])
    described = (await env.http.get(f"{env.system.http_url}/openapi.json")).json()
    known: dict[str, Iterator[object]] = {"ref": cycle(["fuzzed", "noop"]), "execution_id": cycle(ids)}
    await asyncio.to_thread(_fuzz_all, described, env.system.http_url, known)


def _fuzz_all(described: dict[str, Any], url: str, known: dict[str, Iterator[object]]) -> None:
    schema = schemathesis.openapi.from_dict(described)
    schema.config.update(base_url=url)
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) == sum(len(ways) for ways in described["paths"].values())
    deadline = time.monotonic() + FUZZING_SECONDS
    for operation in operations:
        if operation.path not in LEFT_OUT:
            # A slow machine calls each route once as it is described, and no more.
            _fuzz(operation, GenerationMode.POSITIVE, known, most=CASES if time.monotonic() < deadline else 1)
    for operation in operations:
        if operation.path not in LEFT_OUT and time.monotonic() < deadline:
            _fuzz(operation, GenerationMode.NEGATIVE, known, most=CASES)


def _fuzz(operation: Any, mode: GenerationMode, known: dict[str, Iterator[object]], *, most: int) -> None:
    @hypothesis.settings(
        max_examples=most,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), is_known=strategies.booleans())
    def fuzz(case: Any, is_known: bool) -> None:
        for name in case.path_parameters if is_known else ():
            if name in known:
                case.path_parameters[name] = next(known[name])
        if is_known and case.query and "wait" in case.query:
            case.query["wait"] = "1ms"  # what they wait for does not come
        case.call_and_validate(checks=CHECKS, timeout=30)

    try:
        fuzz()
    except Unsatisfiable:
        # This route accepts everything.
        assert mode is GenerationMode.NEGATIVE
