"""What can be wrong in the record: for each check of the audit what spoils a scene, and what is wrong then.

In the statements `<queue>` is the queue of action a, `<late>` a time long ago, `<running>` and the like the
first execution of that status: `spelled_out` puts them in.
"""

import re
from typing import Final

_PLACES: Final = {
    "queue": "(SELECT q.id FROM action_queue q JOIN action a ON a.id = q.action_id WHERE a.ref = 'a')",
    "late": "timestamptz '2020-01-01Z'",
}


def spelled_out(spoil: str) -> str:
    """Put the first execution of a status in place of `<status>`."""
    first = "(SELECT min(id) FROM execution WHERE status = '{}')"
    return re.sub(r"<(\w+)>", lambda place: _PLACES.get(place[1], first.format(place[1])), spoil)


SPOILT: Final[list[tuple[str, set[str]]]] = [
    ("UPDATE action_queue SET depth = depth + 1 WHERE id = <queue>", {"queue_depth"}),
    ("UPDATE action_queue SET head_id = 1000 WHERE id = <queue>", {"queue_head"}),
    ("UPDATE action_queue SET paused = true WHERE id = <queue>", {"queue_rules"}),
    ("UPDATE action_queue SET total_completed = 2 WHERE id = <queue>", {"queue_totals"}),
    ("UPDATE action SET max_concurrent = 2 WHERE ref = 'a';"
     "UPDATE action_queue SET max_concurrent = 2 WHERE id = <queue>", {"queue_limit", "slot_number"}),
    ("UPDATE slot SET slot_number = NULL WHERE execution_id = <running>", {"slot_number"}),
    ("INSERT INTO waiting SELECT queue_id, id FROM execution WHERE id = <delayed>",
     {"line_place", "queue_depth", "queue_head"}),
    ("DELETE FROM waiting WHERE execution_id = <queued>", {"queued_in_line", "queue_depth"}),
    ("UPDATE execution SET status = 'queued', worker_id = NULL, queued_at = now() WHERE id = <running>",
     {"slot_holder", "queued_in_line"}),
    ("UPDATE slot SET attempt = 2 WHERE execution_id = <running>", {"slot_holder", "started_in_slot"}),
    ("UPDATE slot SET finished_at = now(), told_at = now() WHERE execution_id = <scheduled>",
     {"slot_holder", "started_in_slot"}),
    ("DELETE FROM slot WHERE execution_id = <running>", {"started_in_slot"}),
    ("UPDATE execution SET worker_id = 'other' WHERE id = <running>", {"slot_holder"}),
    ("DELETE FROM worker", {"slot_worker"}),
    ("DELETE FROM delayed WHERE execution_id = <delayed>", {"delayed_until"}),
    ("INSERT INTO delayed SELECT id, queue_id, now() + interval '1 h' FROM execution WHERE id = <queued>",
     {"due_time"}),
    ("DELETE FROM expiring WHERE execution_id = <queued>", {"deadline_kept"}),
    ("UPDATE expiring SET expires_at = now() + interval '1 h' WHERE execution_id = <queued>", {"deadline"}),
    ("INSERT INTO untold_end SELECT id, queue_id, now() FROM execution WHERE id = <running>", {"untold_end"}),
    ("DELETE FROM untold_end", {"queue_totals"}),
    ("UPDATE execution SET queue_id = 999 WHERE id = <scheduled>",
     {"execution_queue", "slot_holder", "queue_totals", "deadline", "deleted_totals"}),
    ("UPDATE waiting SET queue_id = 999 WHERE execution_id = <queued>",
     {"queue_depth", "line_place", "queued_in_line"}),
    ("UPDATE execution SET started_at = NULL WHERE id = <running>", {"execution_state"}),
    ("UPDATE execution SET queued_at = NULL WHERE id = <queued>", {"execution_state"}),
    ("DELETE FROM attempt WHERE execution_id = <completed>", {"attempt_recorded"}),
    ("UPDATE attempt SET outcome = 'failed' WHERE execution_id = <completed>", {"attempt_history"}),
    ("UPDATE attempt SET execution_id = 999 WHERE execution_id = <completed>",
     {"attempt_history", "attempt_recorded"}),
    ("UPDATE slot SET granted_at = <late>, offered_at = <late> WHERE claimed_at IS NULL;"
     "UPDATE slot SET claimed_at = <late> WHERE claimed_at IS NOT NULL;"
     "UPDATE worker SET started_at = <late>", {"offer"}),
    ("UPDATE slot SET offered_at = NULL WHERE claimed_at IS NULL; UPDATE worker SET started_at = <late>",
     {"offer"}),
    ("UPDATE slot SET told_at = <late>, finished_at = <late> WHERE finished_at IS NOT NULL",
     {"completion", "settling"}),
    ("UPDATE slot SET finished_at = <late> WHERE finished_at IS NOT NULL", {"settling"}),
    ("UPDATE untold_end SET told_at = <late>", {"completion"}),
    ("UPDATE webhook_delivery SET due_at = <late>, claimed_until = <late>", {"webhook"}),
    ("UPDATE webhook_delivery SET execution_id = <running>", {"webhook_end"}),
    ("INSERT INTO pruned_count VALUES (<queue>, 1)", {"queue_totals"}),
    ("UPDATE deleted_queue_total SET executions = executions + 1", {"deleted_totals"}),
    ("UPDATE deleted_queue_total SET pruned = pruned - 1", {"deleted_totals"}),
    ("UPDATE pruned_count SET queue_id = 999", {"pruned_queue", "queue_totals"}),
    ("INSERT INTO untold_stop SELECT id, 1, 'gone', <late> FROM execution WHERE id = <running>", {"stop"}),
    ("UPDATE worker SET lost_at = <late>", {"orphan"}),
    ("UPDATE worker SET lease_expires_at = <late>", {"orphan"}),
    ("UPDATE slot SET overdue_at = <late> WHERE finished_at IS NULL AND claimed_at IS NOT NULL", {"overdue"}),
    ("UPDATE delayed SET due_at = <late>; UPDATE execution SET run_at = <late> WHERE status = 'delayed'",
     {"waking"}),
    ("UPDATE expiring SET expires_at = <late>; UPDATE execution SET expires_at = <late>"
     " WHERE expires_at IS NOT NULL", {"expiry"}),
    ("DELETE FROM slot WHERE execution_id = <failed>;"
     "UPDATE action_queue SET updated_at = <late>, total_completed = total_completed + 1 WHERE id = <queue>",
     {"idle_slot"}),
]  # fmt: skip
