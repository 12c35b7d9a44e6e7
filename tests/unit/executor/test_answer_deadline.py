"""A change without an answer: the error says whether all or part of it may be done."""

import pytest

from turnstile.common.domain.errors import Overloaded, Unavailable
from turnstile.executor.operations import answer_deadline


async def test_a_lost_connection_is_an_unknown_outcome() -> None:
    with pytest.raises(Unavailable, match=r"^database: gone; all or part of it may be done"):
        async with answer_deadline():
            raise Unavailable("database: gone")


async def test_a_request_that_did_not_start_is_not_applied() -> None:
    with pytest.raises(Unavailable, match=r"^3 wait already; nothing was done, repeat it later$"):
        async with answer_deadline():
            raise Overloaded("3 wait already")
