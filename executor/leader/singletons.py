"""Names that one execution of an action has at a time.

In: what a load found, what was admitted with a name, and what ended. Out: the living executions with a name,
and the rows that a turn writes.
"""

from collections.abc import Iterable, Sequence

from turnstile.executor.leader.records import SingletonRow


class Singletons:
    """The names of living executions. One per epoch."""

    def __init__(self, rows: Iterable[SingletonRow]) -> None:
        self._new: dict[int, SingletonRow] = {}
        """Admitted, and not written yet."""
        self.over: list[int] = []
        self._living: dict[int, SingletonRow] = {}
        self._named: dict[tuple[str, str], dict[int, None]] = {}
        for row in rows:
            self._remember(row)

    @property
    def rows(self) -> list[SingletonRow]:
        """Return what the turn inserts."""
        return list(self._new.values())

    def living(self, action_ref: str, singleton: str) -> Sequence[SingletonRow]:
        """Return the executions with a name, the newest first; several if only waiting ones count."""
        return [self._living[each] for each in reversed(self._named.get((action_ref, singleton), {}))]

    def admit(self, row: SingletonRow) -> None:
        """Note an execution that was admitted with a name."""
        self._remember(row)
        self._new[row.execution_id] = row

    def end(self, execution_ids: Iterable[int]) -> None:
        """Forget what has ended."""
        if not self._living:
            return
        for execution_id in execution_ids:
            row = self._living.pop(execution_id, None)
            if row is None:
                continue
            names = self._named[row.action_ref, row.singleton]
            del names[execution_id]
            if not names:
                del self._named[row.action_ref, row.singleton]
            if self._new.pop(execution_id, None) is None:
                self.over.append(execution_id)

    def written(self) -> None:
        """Forget what the committed turn has written."""
        self._new, self.over = {}, []

    def _remember(self, row: SingletonRow) -> None:
        self._living[row.execution_id] = row
        self._named.setdefault((row.action_ref, row.singleton), {})[row.execution_id] = None
