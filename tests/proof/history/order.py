"""P2: first come, first served. A grant never passes anybody by, and ids are the order of arrival."""

from collections import defaultdict
from collections.abc import Iterator

from tests.proof.history.lines import replayed
from tests.proof.history.lives import lives_of
from tests.proof.history.recording import Recording
from tests.proof.history.tolerances import Tolerances, Violation
from turnstile.common.domain.states import Status


def grants_take_the_head(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """Whoever still waits after a grant has a larger id than all who were granted in it."""
    for line in replayed(recording.moves):
        head = line.head
        if not line.granted or head is None:
            continue
        last = max(grant.execution_id for grant in line.granted)
        if last > head:
            what = f"execution {last} was granted while {head} waited"
            yield Violation(promise="P2", what=what, queue_id=line.queue_id, execution_id=last, at=line.at)


def first_grants_go_by_id(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """Among those that were born into a line, first grants come in the order of ids.

    Told by the executions' own rows alone; what was born delayed takes its place only when it is due.
    """
    delayed = {
        execution_id
        for execution_id, life in lives_of(recording.moves).items()
        if life[0].status is Status.DELAYED
    }
    last: dict[int, int] = defaultdict(int)
    for line in replayed(recording.moves):
        firsts = [g.execution_id for g in line.granted if g.attempt == 1 and g.execution_id not in delayed]
        if not firsts:
            continue
        if min(firsts) < last[line.queue_id]:
            what = f"its first grant came after that of execution {last[line.queue_id]}"
            yield Violation(
                promise="P2", what=what, queue_id=line.queue_id, execution_id=min(firsts), at=line.at
            )
        last[line.queue_id] = max(last[line.queue_id], *firsts)


def ids_go_by_arrival(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """In each queue, what one submitter sent first has the smaller id."""
    births = {life[0].mark: life[0] for life in lives_of(recording.moves).values()}
    before: dict[tuple[str, int], tuple[int, int]] = {}
    for sent in sorted(recording.submitted, key=lambda s: (s.submitter, s.number)):
        birth = births.get(sent.mark)
        if birth is None:
            continue
        line = sent.submitter, birth.queue_id
        number, smaller = before.get(line, (0, 0))
        if birth.execution_id < smaller:
            what = f"{sent.submitter} sent it as number {sent.number}, after {number}: execution {smaller}"
            yield Violation(promise="P2", what=what, execution_id=birth.execution_id)
        before[line] = sent.number, birth.execution_id
