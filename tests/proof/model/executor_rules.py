"""What the executor service may do: admit, settle, cancel, change a limit."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.proof.model.agreement import Agreement
from tests.proof.model.lines import TERMINAL, UNSTARTED, Asked, Told
from tests.proof.model.requests import BOUNDS, asks, limits, nth, some, strayed, telling
from turnstile.common.domain.states import Status


class ExecutorRules(Agreement):
    """One executor service."""

    @rule(batch=st.lists(asks, min_size=1, max_size=5))
    def request(self, batch: list[Asked]) -> None:
        self.admit(batch)

    @precondition(lambda self: self.has(*TERMINAL, "delayed"))
    @rule(completions=st.lists(st.tuples(nth, strayed, telling), min_size=1, max_size=5))
    def settle(self, completions: list[tuple[int, int, str]]) -> None:
        ends = [self.choose(n, *TERMINAL, "delayed") for n, *_ in completions]
        self.settle_by(
            [
                (i, self.attempt(i, off), self.end_told(i, how))
                for i, (_, off, how) in zip(ends, completions, strict=True)
            ]
        )

    @precondition(lambda self: bool(self.model.untold))
    @rule(which=some)
    def repeat_slot_messages(self, which: list[int]) -> None:
        """What the last attempt before an end told comes late, or once more."""
        untold = sorted(self.model.untold)
        chosen = {untold[n % len(untold)] for n in which}
        self.settle_by([(i, self.attempt(i, 0), None) for i in sorted(chosen)])

    @precondition(lambda self: self.has(*TERMINAL, "delayed"))
    @rule()
    def settle_all(self) -> None:
        due = self.do(self.protocol.due_completions())
        messages = [(i, self.attempt(i, 0), self.end_told(i, "as it is")) for i in due]
        assert self.settle_by(messages) == len(messages)

    def settle_by(self, messages: list[Told]) -> int:
        """Settle by these messages; return how many settled something."""
        freed = self.do(
            self.protocol.settle_as(
                *((i, attempt, None if end is None else Status(end)) for i, attempt, end in messages)
            )
        )
        assert (freed.count, freed.early, freed.unknown, freed.granted) == self.model.settle(messages)
        self.agree(freed.granted)
        return freed.count

    def end_told(self, i: int, how: str) -> str | None:
        """Return the end that a message tells: that of the execution, none, or one that never was."""
        status = self.model.runs[i].status if i in self.model.runs else "completed"
        if how == "another end":
            return "failed" if status == "completed" else "completed"
        return status if how == "as it is" and status in TERMINAL else None

    @precondition(lambda self: self.has(*UNSTARTED, "running"))
    @rule(which=some)
    def cancel(self, which: list[int]) -> None:
        self.ask_to_stop({self.choose(n, *UNSTARTED, "running") for n in which})

    @rule(ref=st.sampled_from([*BOUNDS]), limit=limits, paused=st.sampled_from([False] * 4 + [True]))
    def put_action(self, ref: str, limit: int | None, paused: bool) -> None:
        self.agree(self.put(ref, limit, paused))
