import asyncio
import inspect
import threading

import pytest

from tests.integration.client.stand_in import StandIn, accept, standing_in
from turnstile.client import AsyncClient, Client, Rejected, Request, Submitted, Unavailable


def _public_coroutines() -> list[str]:
    methods = inspect.getmembers(AsyncClient, inspect.iscoroutinefunction)
    return [name for name, _ in methods if not name.startswith("_")]


def test_every_method_of_the_asynchronous_client_is_there_with_the_same_arguments() -> None:
    client = Client()
    for name in _public_coroutines():
        blocking, coroutine = getattr(client, name), getattr(AsyncClient(), name)
        assert (
            inspect.signature(blocking).parameters.keys() - {"self"}
            == inspect.signature(coroutine).parameters.keys()
        )
        assert blocking.__doc__ == coroutine.__doc__


def test_outside_its_block_it_refuses_to_work() -> None:
    client = Client()
    with pytest.raises(RuntimeError, match="inside its `with` block"):
        client.submit("noop")
    with client:
        pass
    with pytest.raises(RuntimeError, match="inside its `with` block"):
        client.submit("noop")


class _Background:
    """The stand-in, in a thread: the test itself has no event loop."""

    def __init__(self, amqp_url: str, *, answering: bool = True) -> None:
        self._amqp_url = amqp_url
        self._answering = answering
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._started = threading.Event()
        self.executor: StandIn | None = None

    def __enter__(self) -> "_Background":
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with standing_in(
            self._amqp_url, accept if self._answering else lambda *_: None
        ) as self.executor:
            self._started.set()
            await self._stop.wait()


def test_it_submits_and_raises_as_the_asynchronous_one_does(amqp_url: str) -> None:
    with _Background(amqp_url), Client(amqp_url=amqp_url) as client:
        assert client.submit("noop", {"number": 1}).execution_id == 1
        answers = client.submit_many(Request(action_ref="noop") for _ in range(3))
        assert [each.execution_id for each in answers if isinstance(each, Submitted)] == [2, 3, 4]
        with pytest.raises(Rejected, match="action_ref"):
            client.submit("no such name")


def test_threads_share_one_client(amqp_url: str) -> None:
    ids: list[int] = []
    with _Background(amqp_url), Client(amqp_url=amqp_url) as client:
        threads = [
            threading.Thread(target=lambda: ids.append(client.submit("noop").execution_id)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(ids) == list(range(1, 9))


def test_closing_ends_the_calls_of_other_threads(amqp_url: str) -> None:
    raised: list[Unavailable] = []

    def submit(client: Client) -> None:
        try:
            client.submit("noop")
        except Unavailable as error:
            raised.append(error)

    with _Background(amqp_url, answering=False) as background:
        with Client(amqp_url=amqp_url) as client:
            thread = threading.Thread(target=submit, args=(client,))
            thread.start()
            deadline = threading.Event()
            while not (background.executor and background.executor.deliveries):
                deadline.wait(0.01)
        thread.join()
    assert ["closed" in str(error) for error in raised] == [True]
