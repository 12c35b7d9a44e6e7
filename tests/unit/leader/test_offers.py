"""How offers are divided into messages."""

from turnstile.common.domain.identifiers import Grant
from turnstile.common.worker_protocol import Offer
from turnstile.executor.leader.dispatcher import in_parts


def offers(*sizes_bytes: int) -> list[Offer]:
    return [
        Offer(
            execution_id=number,
            grant=Grant(1, number),
            attempt=1,
            action_ref="a",
            parameters=b"1" * size_bytes,
        )
        for number, size_bytes in enumerate(sizes_bytes)
    ]


def test_small_offers_share_a_message_and_large_ones_are_divided_in_order() -> None:
    assert [len(part) for part in in_parts(offers(*[20] * 500))] == [500]
    given = offers(600_000, 600_000, 20, 5_000_000, 20)
    parts = list(in_parts(given))
    assert [offer for part in parts for offer in part] == given
    assert [len(part) for part in parts] == [1, 2, 1, 1]
