"""What a worker keeps in every case, whatever the leader does: read from what arrived and what ran."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from turnstile.common.worker_protocol import AttemptEnded, Heartbeat, Hello, Report, ReportBody, Sender
from turnstile.testing.worker_check.scene import Scene

_SHOWN_MAX: Final = 3


def broken_invariants(scene: Scene) -> list[str]:
    """Return a sentence for each that the worker broke, perhaps more than once."""
    return [
        *filter(None, [scene.worker.broke]),
        *_unreadable(scene),
        *_other_secrets(scene),
        *_numbers_used_twice(scene),
        *_missing_numbers(scene),
        *_second_ends(scene),
        *_second_starts(scene),
    ]


def _unreadable(scene: Scene) -> Iterator[str]:
    for reason in scene.leader.unreadable[:_SHOWN_MAX]:
        yield f"The leader cannot read {reason}."


def _other_secrets(scene: Scene) -> Iterator[str]:
    secrets: dict[str, str] = {}
    for sender in _senders(scene):
        if secrets.setdefault(sender.worker_id, sender.secret) != sender.secret:
            yield f"The worker {sender.worker_id} sent messages with different secrets."


def _senders(scene: Scene) -> Iterator[Sender]:
    leader = scene.leader
    messages: list[Hello | Heartbeat | Report] = [*leader.hellos, *leader.heartbeats, *leader.reports]
    for each in messages:
        yield each.sender


def _numbers_used_twice(scene: Scene) -> Iterator[str]:
    bodies: dict[tuple[str, int], ReportBody] = {}
    for report in scene.leader.reports:
        key = (report.sender.worker_id, report.number)
        if bodies.setdefault(key, report.body) != report.body:
            yield f"The report {report.number} arrived twice, with different content."


def _missing_numbers(scene: Scene) -> Iterator[str]:
    highest: dict[str, int] = {}
    for report in scene.leader.reports:
        before = highest.get(report.sender.worker_id, 0)
        if report.number > before + 1:
            yield f"The report {report.number} arrived before the report {before + 1}."
        highest[report.sender.worker_id] = max(before, report.number)


def _second_ends(scene: Scene) -> Iterator[str]:
    ends: dict[object, AttemptEnded] = {}
    for end in scene.leader.bodies(AttemptEnded):
        first = ends.setdefault(end.grant, end)
        if first != end:
            yield (
                f"The execution {end.execution_id} was reported as ended twice under the grant {end.grant}:"
                f" as {first.status} and as {end.status}, with different content."
            )


def _second_starts(scene: Scene) -> Iterator[str]:
    for name, count in Counter(scene.trace.begun()).items():
        if count > 1:
            yield f"The execution {name} started {count} times."
