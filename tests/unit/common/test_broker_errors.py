"""Every way in which a call of the AMQP library fails is an error of the broker; other errors stay."""

import pytest

from turnstile.common.broker.errors import BrokerUnavailable, answered


async def _raise(error: Exception | type[Exception]) -> None:
    raise error


@pytest.mark.parametrize("error", [Exception, StopAsyncIteration])
async def test_what_the_library_raises_without_a_text_is_a_lost_connection(error: type[Exception]) -> None:
    """A channel of a connection that closes without a reason, and the end of the iteration over frames."""
    with pytest.raises(BrokerUnavailable, match=r"^the connection closed$"):
        await answered(_raise(error), 1.0)


async def test_an_error_of_our_own_is_not_blamed_on_the_broker() -> None:
    with pytest.raises(ValueError, match="ours"):
        await answered(_raise(ValueError("ours")), 1.0)
