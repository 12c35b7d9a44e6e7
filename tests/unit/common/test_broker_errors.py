"""Every way in which a call of the AMQP library fails is an error of the broker; other errors stay."""

import pytest

from turnstile.common.broker.errors import BrokerUnavailable, answered


async def _raise(error: Exception | type[Exception]) -> None:
    raise error


async def test_a_bare_exception_of_the_library_is_a_lost_connection() -> None:
    """The library rejects with it what waits for a channel of a connection that closes without a reason."""
    with pytest.raises(BrokerUnavailable, match="the connection closed"):
        await answered(_raise(Exception), 1.0)


async def test_an_error_of_our_own_is_not_blamed_on_the_broker() -> None:
    with pytest.raises(ValueError, match="ours"):
        await answered(_raise(ValueError("ours")), 1.0)
