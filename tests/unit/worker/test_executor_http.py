"""The question whether something of a worker may be reclaimed, over HTTP."""

import pytest

from tests.support.http_server import answering
from turnstile.common.domain.errors import Unavailable
from turnstile.worker.executor_http import ExecutorHttp


async def asked(status: int, body: bytes) -> tuple[float, list[str]]:
    paths: list[str] = []

    def answer(path: str, _: bytes) -> tuple[int, bytes]:
        paths.append(path)
        return status, body

    with answering(answer) as url:
        executors = ExecutorHttp(f"{url}/", "token")
        try:
            return await executors.no_reclaim_seconds("w/1"), paths
        finally:
            await executors.close()


async def test_the_answer_is_a_duration_and_is_bounded() -> None:
    assert await asked(200, b'{"seconds": 12.5}') == (12.5, ["/api/v1/workers/w%2F1/no-reclaim"])
    assert (await asked(200, b'{"seconds": 1e9}'))[0] == 3600.0


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"seconds": 5}'),
        (200, b"{}"),
        (200, b"[]"),
        (200, b"not json"),
        (200, b'{"seconds": "soon"}'),
        (200, b'{"seconds": NaN}'),
    ],
)
async def test_anything_else_is_no_answer(status: int, body: bytes) -> None:
    with pytest.raises(Unavailable):
        await asked(status, body)


async def test_no_executor_is_no_answer() -> None:
    executors = ExecutorHttp("http://127.0.0.1:1")
    with pytest.raises(Unavailable):
        await executors.no_reclaim_seconds("w")
    await executors.close()
