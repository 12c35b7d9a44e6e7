"""The judge of a run names each broken promise, and finds none in a correct history."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.proof.chaos.faults import Injected
from tests.proof.chaos.findings import is_explained
from tests.proof.chaos.history import Lost, Window, Witnessed
from tests.proof.chaos.judge import Bounds, judged
from tests.proof.chaos.load import Submit
from tests.proof.chaos.schedule import Fault, Kind
from tests.proof.chaos.submitters import Sent, SubmitLog
from tests.proof.run_log import Run
from turnstile.stress.check.definitions import DefinitionHistory, Definitions

BEGAN = datetime(2026, 11, 22, tzinfo=UTC)
BOUNDS = Bounds(idle_seconds=1.0, overlap_seconds=1.0, worker_slots=10)
Rows = list[dict[str, Any]]


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def execution(number: int, granted: float, ended: float, **fields: Any) -> dict[str, Any]:
    return {
        "id": number,
        "action_ref": "one",
        "key": None,
        "priority": 3,
        "tag": str(number),
        "status": "completed",
        "attempt": 1,
        "created_at": at(0),
        "queued_at": at(0),
        "scheduled_at": at(granted),
        "started_at": at(granted),
        "completed_at": at(ended),
        "worker_id": "one",
        "passages": None,
        **fields,
    }


def run(number: int, started: float, stopped: float, attempt: int = 1) -> Run:
    return Run(
        execution_id=number,
        attempt=attempt,
        pid=7,
        started_ns=round(started * 1e9),
        stopped_ns=round(stopped * 1e9),
    )


class Scene:
    """Executions 1 to 3 of an action with limit 1, one after the other, a second each."""

    def __init__(self) -> None:
        self.executions: Rows = [execution(n, n - 1, n) for n in (1, 2, 3)]
        self.attempts: Rows = []
        self.runs = [run(n, n - 0.9, n - 0.1) for n in (1, 2, 3)]
        self.definition: dict[str, Any] = {"max_concurrent": 1}
        self.log = SubmitLog()
        for number in (1, 2, 3):
            submit = Submit(
                number=number,
                submitter="amqp-1",
                at_seconds=0.0,
                message_id=str(number),
                body={"action_ref": "one", "parameters": {"seconds": 0.8}},
                run_in_seconds=None,
            )
            self.log.sent[number] = Sent(submit=submit, body=submit.body, confirmed_at=at(0))
        self.unpublished: set[int] = set()

    def violations(self, bounds: Bounds = BOUNDS) -> list[str]:
        seen = Witnessed(
            executions=self.executions,  # type: ignore[arg-type]
            ended_attempts=self.attempts,  # type: ignore[arg-type]
            runs=self.runs,
            lost=[],
            definitions=Definitions(actions={"one": DefinitionHistory(((0, self.definition),))}),
            log=self.log,
            published={
                row["id"]: {row["status"]} for row in self.executions if row["id"] not in self.unpublished
            },
            booted_at=BEGAN,
        )
        return judged(seen, bounds)[0]


def _too_many(scene: Scene) -> None:
    scene.executions[1] |= {"scheduled_at": at(0.5), "worker_id": "another"}


def _out_of_order_in_a_run(scene: Scene) -> None:
    for row, started in zip(scene.executions, (0.1, 2.1, 1.1), strict=True):
        row |= {"scheduled_at": at(0), "started_at": at(started), "completed_at": at(started + 0.8)}
    scene.runs = [run(1, 0.1, 0.9), run(3, 1.1, 1.9), run(2, 2.1, 2.9)]


def _not_started(scene: Scene) -> None:
    for row, started in zip(scene.executions, (0.1, 1.1, 4.1), strict=True):
        row |= {"scheduled_at": at(0), "started_at": at(started), "completed_at": at(started + 0.8)}
    scene.runs = [run(1, 0.1, 0.9), run(2, 1.1, 1.9), run(3, 4.1, 4.9)]


def _out_of_order(scene: Scene) -> None:
    one, two = scene.executions[0], scene.executions[1]
    for name in ("scheduled_at", "completed_at"):
        one[name], two[name] = two[name], one[name]


def _idle(scene: Scene) -> None:
    scene.executions[2] |= {"scheduled_at": at(4), "completed_at": at(5)}
    scene.runs[2] = run(3, 4.1, 4.9)


def _lost(scene: Scene) -> None:
    del scene.executions[2]
    del scene.runs[2]


def _doubled(scene: Scene) -> None:
    scene.executions.append(execution(4, 3, 4, tag="3"))
    scene.runs.append(run(4, 3.1, 3.9))


def _ran_twice(scene: Scene) -> None:
    scene.runs.append(run(2, 1.2, 1.3))


def _ran_on(scene: Scene) -> None:
    scene.runs[0] = run(1, 0.1, 1.5)


def _ran_together(scene: Scene) -> None:
    scene.runs[2] = run(3, 1.5, 2.5)


def _without_a_run(scene: Scene) -> None:
    del scene.runs[1]


def _expired(scene: Scene) -> None:
    scene.executions[1]["status"] = "expired"


def _stuck(scene: Scene) -> None:
    scene.executions[2] |= {"status": "queued", "attempt": 0, "scheduled_at": None, "completed_at": None}
    del scene.runs[2]


def _unpublished(scene: Scene) -> None:
    scene.unpublished.add(2)


def _paused(scene: Scene) -> None:
    scene.definition["paused"] = True


@pytest.mark.parametrize(
    ("breaks", "named"),
    [
        (_too_many, "never more granted than the limit"),
        (_out_of_order_in_a_run, "after execution 3 at the same worker"),
        (_not_started, "at worker 0, a slot was free while an execution waited"),
        (_out_of_order, "was granted a slot while execution 1 waited"),
        (_idle, "a slot was free while an execution waited"),
        (_lost, "was confirmed and has no execution"),
        (_doubled, "number 2 is execution 3 and execution 4"),
        (_ran_twice, "attempt 1 of execution 2 ran in process"),
        (_ran_on, "but had ended at"),
        (_ran_together, "2 were running"),
        (_without_a_run, "was completed without a run"),
        (_expired, "ended as expired, for which there was no cause"),
        (_stuck, "was still queued at the end"),
        (_unpublished, "ended as completed, published was nothing"),
        (_paused, "the limit was 0"),
    ],
)
def test_a_broken_promise_is_named(breaks: Callable[[Scene], None], named: str) -> None:
    scene = Scene()
    assert scene.violations() == []
    breaks(scene)
    assert any(named in each for each in scene.violations()), scene.violations()


def test_a_reclaimed_execution_may_run_again_and_waits_first() -> None:
    scene = Scene()
    scene.executions[0] |= {"attempt": 2, "scheduled_at": at(0.5), "started_at": at(0.6)}
    scene.attempts.append(
        {
            "execution_id": 1,
            "attempt": 1,
            "outcome": "reclaimed",
            "worker_id": "one",
            "scheduled_at": at(0),
            "started_at": at(0.1),
            "ended_at": at(0.5),
        }
    )
    scene.runs[:1] = [run(1, 0.1, 0.6), run(1, 0.6, 0.9, attempt=2)]
    assert scene.violations() == []
    scene.runs[0] = run(1, 0.1, 1.9)
    assert any("but had ended at" in each for each in scene.violations())


def test_a_run_may_outlive_its_abandoned_execution_as_it_may_a_reclaim() -> None:
    scene = Scene()
    scene.executions[0]["status"] = "abandoned"
    scene.runs[0] = run(1, 0.1, 1.9)
    assert _unexplained(scene) == []
    scene.runs[0] = run(1, 0.1, 2.1)
    assert any("but had ended at" in each for each in _unexplained(scene))


@pytest.mark.parametrize("status", ["cancelled", "timeout"])
def test_a_paused_worker_may_run_on_what_the_leader_ended_until_it_notices_the_pause(status: str) -> None:
    scene = Scene()
    scene.executions[0]["status"] = status
    scene.runs[0] = run(1, 0.1, 3.9)
    assert any("but had ended at" in each for each in _unexplained(scene))
    paused = replace(BOUNDS, overlap_windows=[Window(began_at=at(0.5), ended_at=at(3))])
    assert _unexplained(scene, paused) == []
    scene.executions[0]["status"] = "completed"
    assert any("but had ended at" in each for each in _unexplained(scene, paused))


def _unexplained(scene: Scene, bounds: Bounds = BOUNDS) -> list[str]:
    return [each for each in scene.violations(bounds) if "for which there was no cause" not in each]


def fault(target: str, began: float, healed: float) -> Injected:
    planned = Fault(number=1, kind=Kind.BROKER_KILLED, target=target, at_seconds=began, lasting_seconds=0.1)
    return Injected(fault=planned, began_at=at(began), healed_at=at(healed))


@pytest.mark.parametrize(
    ("faults", "explained"),
    [
        ([fault("broker", 1, 10)], True),
        ([fault("worker-1", 1, 10)], True),
        ([fault("worker-2", 1, 10)], False),
        ([fault("database", 1, 10)], False),
        ([fault("broker", 1, 5)], False),
        # Its heartbeat had arrived, and was read after the second outage.
        ([fault("broker", 1, 5), fault("database", 6, 11)], True),
        ([fault("broker", 1, 5), fault("database", 8, 11)], False),
    ],
)
def test_a_lost_worker_is_explained_by_a_fault_of_its_own_or_of_the_broker(
    faults: list[Injected], *, explained: bool
) -> None:
    lost = Lost(worker_id="w", name="worker-1", heard_at=at(11.5), gone_at=at(14))
    assert is_explained(lost, faults) is explained
