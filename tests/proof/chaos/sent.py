"""What the submitters know: what they sent, and what they were told became of it.

In: the steps of the load as they are sent. Out: the `Log`, which is what P5 is held against.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.proof.chaos.load import Cancel, Submit


@dataclass(slots=True, kw_only=True)
class Sent:
    """One submission: what was asked, and what is known to have been taken."""

    submit: Submit
    body: Mapping[str, Any]
    sent_at: datetime
    confirmed_at: datetime | None = None
    execution_id: int | None = None


@dataclass(slots=True, kw_only=True)
class Log:
    """What all submitters did, in the order of each."""

    sent: dict[int, Sent] = field(default_factory=dict)
    """By the number of the submission; one that is sent twice stands here once."""
    refused: list[str] = field(default_factory=list)
    """Answers that no fault excuses."""
    repeated: int = 0
    """How often something was sent again because its fate was unknown."""
    cancels: int = 0
    changes: int = 0

    def sending(self, submit: Submit) -> Sent:
        """Return the entry of a submission, made when it is sent for the first time."""
        known = self.sent.get(submit.number)
        if known is None:
            now = datetime.now(UTC)
            due = {}
            if submit.run_in_seconds is not None:
                due = {"run_at": (now + timedelta(seconds=submit.run_in_seconds)).isoformat()}
            known = Sent(submit=submit, body={**submit.body, **due}, sent_at=now)
            self.sent[submit.number] = known
        return known


def named(cancel: Cancel, log: Log) -> dict[str, Any] | None:
    """Return how a cancel names its execution; None where its id is not known."""
    if cancel.by_key:
        return {"idempotency_key": cancel.of.body["idempotency_key"]}
    known = log.sent.get(cancel.of.number)
    return None if known is None or known.execution_id is None else {"execution_id": known.execution_id}
