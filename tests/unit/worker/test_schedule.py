"""Schedules in code: declared above an action, sent with the hello, seen in the context."""

from datetime import UTC, datetime

import pytest

from turnstile import Context, action, schedule
from turnstile.common.worker_protocol import Hello, Sender
from turnstile.executor.leader.commands import Definitions
from turnstile.executor.leader.registration import register
from turnstile.executor.leader.sessions import Sessions
from turnstile.executor.queue_manager.state import State
from turnstile.testing import RunOptions, run
from turnstile.worker.parameters import ActionDeclarationError


@schedule("0 6 * * MON-FRI", timezone="Europe/Berlin")
@schedule(every="15m", name="often", overlap="skip")
@action("reports.nightly")
async def nightly(context: Context) -> str | None:
    return None if context.scheduled_for is None else context.scheduled_for.isoformat()


def _hello() -> Hello:
    registered = nightly.registered
    return Hello(
        sender=Sender(worker_id="w", session=1, secret="s"), name="w", pools=("default",), concurrency=1,
        actions=("reports.nightly",), lease_seconds=30.0, epoch_seen=0,
        definitions=(registered.definition.model_dump(mode="json"),),
        schedules=tuple(each.stored() for each in registered.schedules),
    )  # fmt: skip


def test_a_worker_registers_the_schedules_that_the_installation_lacks_and_changes_none() -> None:
    definitions, state = Definitions(), State()
    sessions = Sessions(1, state, (), 0.0, offset=0.0)
    register(_hello(), definitions, sessions, state)
    stored = definitions.of_kind("schedule")
    assert stored["reports.nightly"]["cron"] == "0 6 * * MON-FRI"
    assert stored["often"] == {
        "name": "often", "action_ref": "reports.nightly", "every": 900.0, "overlap": "skip",
    }  # fmt: skip
    assert [name for name, _ in definitions.take_schedules()] == ["often", "reports.nightly"]
    definitions.bodies["schedule", "often"] = {**stored["often"], "every": 60.0}
    hello, _, _ = register(_hello(), definitions, sessions, state)
    assert definitions.bodies["schedule", "often"]["every"] == 60.0
    assert definitions.take_schedules() == []
    (note,) = hello.about["start_notes"]
    assert "schedule_differs schedule=often" in note


def test_a_schedule_in_code_is_checked_at_import() -> None:
    with pytest.raises(ActionDeclarationError, match="would never fire"):
        schedule("0 0 30 2 *")(nightly)
    with pytest.raises(ActionDeclarationError, match="two are named 'often'"):
        schedule(every=60, name="often")(nightly)
    with pytest.raises(ActionDeclarationError, match="above @action"):
        schedule(every=60)(len)


def test_the_context_has_the_occurrence_in_a_test_too() -> None:
    at = datetime(2026, 11, 30, 5, tzinfo=UTC)
    assert run(nightly, options=RunOptions(scheduled_for=at)).result == at.isoformat()
    assert run(nightly).result is None
