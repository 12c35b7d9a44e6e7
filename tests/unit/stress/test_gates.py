"""The replay of gates, over moves written by hand."""

from turnstile.stress.check.gates import GateStep, IdleAllowance, Move, replayed

LIMITED = [Move(0, 0, GateStep.AT_LEAST, 2), Move(0, 0, GateStep.AT_MOST, 2)]
ONE_SLOT_IS_USED = [
    *LIMITED,
    *(Move(0, 1, GateStep.ARRIVED, execution_id) for execution_id in range(1, 6)),
    Move(0, 2, GateStep.GRANTED, 1),
    *(
        move
        for execution_id in range(2, 6)
        for move in (
            Move(0, execution_id + 1, GateStep.FREED, execution_id - 1),
            Move(0, execution_id + 1, GateStep.GRANTED, execution_id),
        )
    ),
]


def longest_idle(moves: list[Move], *, exact: bool) -> int:
    allowance = IdleAllowance(seconds=1.0, exact=exact)
    return max(gate.longest_idle_ns for gate in replayed(sorted(moves), until=9, allowance=allowance))


def test_a_slot_that_is_never_used_is_idle_although_others_pass_it_on() -> None:
    assert longest_idle(ONE_SLOT_IS_USED, exact=True) == 5


def test_where_ends_show_before_they_are_committed_a_grant_takes_the_oldest_free_slot() -> None:
    assert longest_idle(ONE_SLOT_IS_USED, exact=False) == 2


def test_a_lowered_limit_ends_what_was_idle() -> None:
    lowered = [
        *LIMITED,
        Move(0, 1, GateStep.ARRIVED, 1),
        Move(0, 4, GateStep.AT_LEAST, 0),
        Move(0, 7, GateStep.AT_LEAST, 1),
    ]
    assert longest_idle(lowered, exact=True) == 3
