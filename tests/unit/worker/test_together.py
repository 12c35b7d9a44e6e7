"""Which reports share an AMQP message."""

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import AttemptEnded, Report, Sender
from turnstile.worker.amqp import _together

SENDER = Sender(worker_id="w", session=1, secret="s")


def report(number: int, size_bytes: int = 2) -> Report:
    body = AttemptEnded(
        execution_id=number, grant=Grant(1, number), status=Status.COMPLETED, result=b"1" * size_bytes
    )
    return Report(sender=SENDER, number=number, kept_from=1, epoch_seen=1, body=body)


def numbers(*reports: Report) -> list[list[int]]:
    return [[each.number for each in part] for part in _together(reports)]


def test_small_reports_share_a_message_up_to_a_number() -> None:
    parts = numbers(*map(report, range(1, 451)))
    assert [len(part) for part in parts] == [200, 200, 50]
    assert [number for part in parts for number in part] == list(range(1, 451))


def test_a_large_report_is_alone_and_keeps_its_place() -> None:
    given = [report(1), report(2), report(3, 10_000_000), report(4), report(5, 70_000), report(6, 70_000)]
    assert numbers(*given) == [[1, 2], [3], [4], [5], [6]]
