"""The question whether something of a worker may be reclaimed, over HTTP."""

import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

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


async def test_the_authority_of_the_settings_is_trusted_and_no_other(tmp_path: Path) -> None:
    authority, file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with answering(lambda *_: (200, b'{"seconds": 5}'), context) as url:
        trusting, other = ExecutorHttp(url, ca_file=str(file)), ExecutorHttp(url)
        try:
            assert await trusting.no_reclaim_seconds("w") == 5.0
            with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await other.no_reclaim_seconds("w")
        finally:
            await trusting.close()
            await other.close()


def test_the_client_is_imported_at_the_start_and_only_with_a_url() -> None:
    script = (
        "import sys; from turnstile.worker.executor_http import ExecutorHttp;"
        "assert 'httpx' not in sys.modules; ExecutorHttp('http://127.0.0.1:1'); assert 'httpx' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


async def test_no_executor_is_no_answer() -> None:
    executors = ExecutorHttp("http://127.0.0.1:1")
    with pytest.raises(Unavailable):
        await executors.no_reclaim_seconds("w")
    await executors.close()
