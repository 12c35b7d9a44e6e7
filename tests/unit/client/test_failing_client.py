"""A client whose connections end by an error says which one; that of the process is made anew."""

import asyncio
from contextlib import closing

import pytest

from turnstile.client import AsyncClient, Client, Rejected
from turnstile.client.default import _default, current_client, use_client
from turnstile.client.transport import OverHttp

_URL = "http://127.0.0.1:1"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients whose transport ends with an error."""

    async def run(_: OverHttp) -> None:
        raise ZeroDivisionError("the transport failed")

    monkeypatch.setattr(OverHttp, "run", run)


async def test_its_calls_raise_the_error_that_ended_it(failing: None) -> None:
    client = await AsyncClient(http_url=_URL).aopen()
    while client._failure() is None:
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="this client has failed") as raised:
        await client.submit("a")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        await client.aclose()


def test_the_client_of_the_process_is_made_anew(failing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_API_URL", _URL)
    monkeypatch.delenv("TURNSTILE_AMQP_URL", raising=False)
    with use_client(None), closing(_default):
        first = current_client()
        while not first._has_failed():
            pass
        monkeypatch.undo()
        monkeypatch.setenv("TURNSTILE_API_URL", _URL)
        monkeypatch.delenv("TURNSTILE_AMQP_URL", raising=False)
        second = current_client()
        assert second is not first
        assert not second._has_failed()


def test_a_client_is_opened_and_closed_without_a_block() -> None:
    client = Client(http_url=_URL).open()
    # Refused before anything is sent, so no server is needed.
    with pytest.raises(Rejected, match="the key 'a:b' has a colon"):
        client.list(metadata={"a:b": "c"})
    client.close()
    with pytest.raises(RuntimeError, match="inside its `with` block only"):
        client.list()
