"""The hooks of a process: in order, backwards at the end, and undone where one fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from turnstile.worker.lifespan import Hook, Lifespan, on_start

CALLS: list[str] = []


def hook(kind: Any, name: str, *, fails: bool = False) -> Hook:
    def plain(state: SimpleNamespace) -> None:
        CALLS.append(name)
        setattr(state, name, True)
        if fails:
            raise ValueError(name)

    async def waiting() -> None:
        CALLS.append(name)

    @contextmanager
    def held(state: SimpleNamespace) -> Iterator[None]:
        CALLS.append(name)
        yield
        CALLS.append(f"end of {name}")

    functions: dict[str, Any] = {"start": plain, "stop": waiting, "lifespan": held}
    return Hook(kind=kind, function=functions[kind])


@pytest.fixture(autouse=True)
def forgotten() -> None:
    CALLS.clear()


async def test_hooks_are_called_in_order_and_backwards_at_the_end() -> None:
    life = Lifespan([hook("start", "model"), hook("lifespan", "pool"), hook("stop", "bye")])
    await life.start()
    assert (CALLS, vars(life.state)) == (["model", "pool"], {"model": True})
    await life.stop()
    assert CALLS == ["model", "pool", "bye", "end of pool"]


async def test_where_one_fails_what_was_started_is_stopped_and_the_next_try_begins_anew() -> None:
    life = Lifespan([hook("lifespan", "pool"), hook("start", "model", fails=True), hook("stop", "bye")])
    for _ in range(2):
        CALLS.clear()
        with pytest.raises(ValueError, match="model"):
            await life.start()
        assert CALLS == ["pool", "model", "end of pool"]
        assert vars(life.state) == {}


def test_a_hook_for_an_unknown_process_is_refused() -> None:
    with pytest.raises(ValueError, match="where: expected 'worker' or 'child', not 'parent'"):
        on_start(where="parent")  # type: ignore[call-overload]


async def test_a_lifespan_that_is_no_context_manager_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a context manager, not int"):
        await Lifespan([Hook(kind="lifespan", function=lambda: 3)]).start()
