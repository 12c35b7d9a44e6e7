"""What time may bring: something is due, a time to live runs out, the watchdog looks."""

from hypothesis.stateful import precondition, rule

from tests.integration.executor.reading import ids_in
from tests.proof.model.agreement import Agreement
from tests.proof.model.lines import UNSTARTED
from tests.proof.model.requests import some


class TimeRules(Agreement):
    """The clock and the watchdog. Time passes by moving the instants in the tables."""

    @precondition(lambda self: self.has("delayed"))
    @rule(which=some)
    def wake_due(self, which: list[int]) -> None:
        due = {self.choose(n, "delayed") for n in which} & self.model.delayed.keys()
        self.model.delayed.update(dict.fromkeys(due, True))
        self.do(self.update("UPDATE delayed SET due_at = '-infinity' WHERE execution_id = ANY ($1)", due))
        woken, grants = self.do(self.protocol.wake_due())
        assert ([m.execution_id for m in woken], ids_in(grants)) == self.model.wake_due()
        self.agree(ids_in(grants))

    @precondition(lambda self: bool(self.model.deadlines))
    @rule(which=some)
    def let_time_to_live_run_out(self, which: list[int]) -> None:
        self.run_out({self.choose(n, *UNSTARTED, "running") for n in which})

    @rule()
    def expire_due(self) -> None:
        self.expire()

    @rule()
    def delete_idle_queues(self) -> None:
        assert self.do(self.protocol.delete_idle_queues()) == self.model.delete_idle_queues()
        self.agree()

    @rule()
    def watch(self) -> None:
        """What the watchdog would see: unsettled ends, unclaimed offers, idle slots."""
        slots = self.model.slots()
        told = self.do(self.protocol.due_completions())
        assert told == sorted({i for i, ended in slots.items() if ended} | self.model.untold)
        unclaimed = sorted(i for i in slots if self.model.runs[i].status == "scheduled")
        assert self.do(self.protocol.due_offers()) == (unclaimed if self.model.live_workers else [])
        idle = self.model.idle()
        queue_ids = self.do(self.protocol.idle_queues())
        assert len(queue_ids) == len(idle)
        granted = ids_in(self.do(self.protocol.grant(*queue_ids)))
        assert granted == self.model.grant(idle)
        self.agree(granted)
