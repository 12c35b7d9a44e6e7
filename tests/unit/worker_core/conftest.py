"""Every test here runs on a loop whose time jumps, so none of them waits."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.unit.worker_core.world import JumpingLoop, World


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"jumping": JumpingLoop}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A worker with a certain lease."""
    world = await World().serve()
    yield world
    await world.close()


@pytest.fixture
async def make_world() -> AsyncIterator[Callable[..., World]]:
    """Make a world with other settings; it is not served yet."""
    worlds: list[World] = []

    def make(**settings: object) -> World:
        worlds.append(World(**settings))
        return worlds[-1]

    yield make
    for each in worlds:
        await each.close()
