"""What operators and workers changed, as rows of the audit log: written in the transaction of the change.

In: subjects before and after. Out: rows of the turn. A change without an author is recorded only if it
changes a definition.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from turnstile.common.domain.states import Status
from turnstile.executor.leader.records import AuditRow

Body: TypeAlias = Mapping[str, Any]

NAMED: Final = {"action": "ref", "resource": "name", "pool": "name", "schedule": "name"}
"""The field that has the name of a definition."""
_FLATTENED: Final = ("retry", "rate")
_RATE: Final = {"starts": None, "per": None}
_LIMITS: Final = frozenset({"max_concurrent", "max_concurrent_total", "capacity"})


class AuditLog:
    """The rows of a turn."""

    def __init__(self) -> None:
        self.rows: list[AuditRow] = []

    def changed(self, kind: str, name: str, old: Body, new: Body, by: Body | None) -> None:
        """Record how a definition was changed; empty: there was none, or there is none any more."""
        before, after = _flat(kind, old), _flat(kind, new)
        changed = {each for each in {*before, *after} if before.get(each, ...) != after.get(each, ...)}
        if changed:
            self._add(
                _verb(changed, old, new), kind, name, by=by,
                ref=name if kind == "action" else (new or old).get("action_ref"),
                before={each: before[each] for each in sorted(changed) if each in before},
                after={each: after[each] for each in sorted(changed) if each in after},
            )  # fmt: skip

    def key_changed(self, ref: str, key: str, old: Body | None, new: Body | None, by: Body | None) -> None:
        """Record how the settings of a key were changed: a change of its action."""
        before, after = _written_key(key, old), _written_key(key, new)
        self._add("changed", "action", ref, ref=ref, by=by, before=before, after=after)

    def drained(self, worker_id: str, by: Body | None) -> None:
        """Record that an operator drains a worker."""
        if by is not None:
            before, after = {"state": "live"}, {"state": "draining"}
            self._add("drained", "worker", worker_id, ref=None, by=by, before=before, after=after)

    def cancelled(
        self, execution_id: int, ref: str, moved: tuple[Status, Status], reason: str | None, by: Body | None
    ) -> None:
        """Record that an operator cancelled an execution, or had its worker asked to stop it.

        `moved`: its status before and after.
        """
        if by is None:
            return
        before, after = moved
        asked = {} if after is Status.CANCELLED else {"cancel_requested": True}
        self._add(
            "cancelled", "execution", str(execution_id), ref=ref, by=by, before={"status": str(before)},
            after={"status": str(after), **asked, **({} if reason is None else {"reason": reason})},
        )  # fmt: skip

    def retried(
        self, retry_of: int, ref: str, retry_id: int, edited: Sequence[str] | None, by: Body | None
    ) -> None:
        """Record that an operator had an ended execution run again, and which parameters were changed."""
        if by is not None:
            after = {"retry_id": retry_id, **({} if edited is None else {"changed_parameters": edited})}
            self._add("retried", "execution", str(retry_of), ref=ref, by=by, before={}, after=after)

    def _add(
        self,
        verb: str,
        kind: str,
        subject: str,
        *,
        ref: str | None,
        by: Body | None,
        before: Body,
        after: Body,
    ) -> None:
        row = AuditRow(
            verb=verb, subject_kind=kind, subject=subject, action_ref=ref, changed_by=by, before=before,
            after=after,
        )  # fmt: skip
        self.rows.append(row)


def _flat(kind: str, body: Body) -> dict[str, Any]:
    """Return a definition as the audit log shows it: flat, and without its name."""
    found: dict[str, Any] = {}
    for name, value in body.items():
        if name == NAMED.get(kind):
            continue
        if name in _FLATTENED:
            inner = (_RATE if name == "rate" else {}) if value is None else value
            found |= {f"{name}.{part}": _plain(each) for part, each in inner.items()}
        else:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _verb(changed: set[str], old: Body, new: Body) -> str:
    if not old:
        return "created"
    if not new:
        return "deleted"
    if changed <= _LIMITS:
        return "limit_changed"
    if changed == {"paused"}:
        return "paused" if new["paused"] else "resumed"
    return "changed"


def _written_key(key: str, body: Body | None) -> Body:
    if body is None:
        return {}
    limit = {"max_concurrent": body.get("max_concurrent")} if body.get("has_limit") else {}
    return {f"keys.{key}": {**limit, "weight": body.get("weight", 1)}}
