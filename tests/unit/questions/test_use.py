"""How much of resources and pools was held over the last hour, by minute."""

from tests.unit.questions.test_explain import Scheduler, define, resource, worker
from turnstile.executor.questions.use import MINUTES, UseHistory
from turnstile.executor.queue_manager.definitions import Use
from turnstile.executor.queue_manager.inputs import DeleteResource


def test_a_minute_has_the_mean_of_its_samples_and_one_without_a_sample_is_not_known() -> None:
    scheduler = Scheduler(resource("cad", 4), define("a", Use(resource="cad", units=2)), worker())
    uses = UseHistory()
    uses.note(scheduler.state, 600.0)
    (first, _) = scheduler.admit("a", 2)
    uses.note(scheduler.state, 604.0)
    assert uses.of("resource", "cad", 604.0)[-1] == 0
    uses.note(scheduler.state, 605.0)
    assert (uses.of("resource", "cad", 605.0)[-1], uses.of("pool", "default", 605.0)[-1]) == (2, 1)
    scheduler.end(first)
    uses.note(scheduler.state, 720.0)
    assert uses.of("resource", "cad", 730.0)[-3:] == (2, None, 2)
    assert uses.of("pool", "default", 730.0)[-3:] == (1, None, 1)


def test_an_hour_is_kept_and_nothing_of_what_is_deleted() -> None:
    scheduler = Scheduler(resource("cad", 4), worker())
    uses = UseHistory()
    for minute in range(2 * MINUTES):
        uses.note(scheduler.state, 60.0 * minute)
    now = 60.0 * (2 * MINUTES - 1)
    assert uses.of("resource", "cad", now) == (0,) * MINUTES
    scheduler.turn(DeleteResource(name="cad"))
    uses.note(scheduler.state, now + 5)
    assert uses.of("resource", "cad", now + 5) == (None,) * MINUTES
