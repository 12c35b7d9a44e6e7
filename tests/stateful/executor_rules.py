"""What the executor service may do: admit, settle, cancel, change a limit."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.stateful.agreement import Agreement
from tests.stateful.lines import TERMINAL, UNSTARTED, Asked
from tests.stateful.requests import BOUNDS, asks, limits, nth, some, strayed


class ExecutorRules(Agreement):
    """One executor service."""

    @rule(batch=st.lists(asks, min_size=1, max_size=5))
    def request(self, batch: list[Asked]) -> None:
        self.admit(batch)

    @precondition(lambda self: self.has(*TERMINAL, "delayed"))
    @rule(completions=st.lists(st.tuples(nth, strayed), min_size=1, max_size=5))
    def settle(self, completions: list[tuple[int, int]]) -> None:
        ends = [self.choose(n, *TERMINAL, "delayed") for n, _ in completions]
        pairs = [(i, self.attempt(i, off)) for i, (_, off) in zip(ends, completions, strict=True)]
        freed = self.do(self.protocol.settle(*pairs))
        assert (freed.count, freed.early, freed.unknown, freed.granted) == self.model.settle(pairs)
        self.agree(freed.granted)

    @precondition(lambda self: self.has(*TERMINAL, "delayed"))
    @rule()
    def settle_all(self) -> None:
        pairs = [(i, self.attempt(i, 0)) for i in self.do(self.protocol.due_completions())]
        freed = self.do(self.protocol.settle(*pairs))
        assert freed.count == len(pairs)
        assert (freed.count, freed.early, freed.unknown, freed.granted) == self.model.settle(pairs)
        self.agree(freed.granted)

    @precondition(lambda self: self.has(*UNSTARTED, "running"))
    @rule(which=some)
    def cancel(self, which: list[int]) -> None:
        self.ask_to_stop({self.choose(n, *UNSTARTED, "running") for n in which})

    @rule(ref=st.sampled_from([*BOUNDS]), limit=limits, paused=st.sampled_from([False] * 4 + [True]))
    def put_action(self, ref: str, limit: int | None, paused: bool) -> None:
        self.agree(self.put(ref, limit, paused))
