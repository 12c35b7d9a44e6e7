"""A change that was not answered: whoever asked is told whether it may have been done."""

import pytest

from turnstile.common.domain.errors import Overloaded, Unavailable
from turnstile.executor.api.services import answer_deadline


async def test_of_what_was_lost_on_the_way_nobody_knows() -> None:
    with pytest.raises(Unavailable, match=r"^database: gone; it may have been done"):
        async with answer_deadline():
            raise Unavailable("database: gone")


async def test_what_was_not_begun_was_not_done() -> None:
    with pytest.raises(Unavailable, match=r"^3 wait already; nothing was done, repeat it later$"):
        async with answer_deadline():
            raise Overloaded("3 wait already")
