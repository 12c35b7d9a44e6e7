"""The statements decide as the model of gates does, step by step, in random walks."""

import pytest

from tests.proof.gates.walks import draw, failure, shortened
from tests.support.protocol import connected
from tests.support.sizes import sizes


@sizes("walks", short=30, whole=1000)
@pytest.mark.timeout(600)
async def test_the_statements_decide_like_the_model(database_url: str, walks: int) -> None:
    async with connected(database_url) as protocol:
        for seed in range(walks):
            walk = draw(seed, 40)
            if await failure(protocol, walk) is not None:
                shorter = await shortened(protocol, walk)
                pytest.fail(f"walk {seed}, {shorter}: {await failure(protocol, shorter)}")
