"""Planted bugs of runs: in the decision, at the leader that tells workers of it, and at the worker."""

from typing import Final

from tests.proof.simulation.defect import in_decision, in_leader, in_worker

OF_RUNS: Final = (
    in_decision(
        "a queue that is at two workers gets more than its limit",
        "runs",
        "runs, runs moved",
        "P1|LIMIT_HELD|LIMIT_RUN",
        "len(queue.at) != 1 or action.is_closed => not queue.at or action.is_closed",
    ),
    in_decision(
        "a run that stalls is not recalled",
        "runs",
        "runs stalled",
        "STALLED",
        "if is_stalled and may_have_runs(action.definition): => if is_stalled and action.pace < 0:",
    ),
    in_decision(
        "what is behind a returned one is not recalled",
        "runs",
        "runs returned",
        "STUCK .*granted",
        "if execution not in worker.recalled: => if execution in worker.recalled:",
    ),
    in_leader(
        "workers are not told of a changed limit",
        "dispatcher",
        "runs told",
        "TOLD",
        "sessions.send(worker_id, Offers(queue=queue_name(queue), at_once=queue.limit, offers=())) => pass",
    ),
    in_leader(
        "a worker gets offers before it has said what it has",
        "sessions",
        "runs with losses",
        "ORDER|START_ONCE|STARTED_IN_ORDER",
        "return session is not None and session.is_answered => return session is not None",
    ),
    in_worker(
        "a worker starts one more of a run than may run at once",
        "attempt",
        "runs",
        "AT_ONCE|LIMIT_RUN",
        "self.at_once is None or self.running < self.at_once"
        " => self.at_once is None or self.running <= self.at_once",
    ),
    in_worker(
        "a worker starts a run in the order of the grants",
        "attempt",
        "runs urgent",
        "ORDER",
        "heappush(queue.line, (offer.priority, offer.execution_id, offer.grant))"
        " => heappush(queue.line, (0, offer.grant.counter, offer.grant))",
    ),
    in_worker(
        "a worker starts what it has returned after a recall",
        "attempt",
        "runs changed, runs of old leaders",
        "START_ONCE .*recalled",
        "return self._remove_upto(queue.barrier, name, queue)"
        " => waiting = [each[2] for each in queue.line if each[2] in self._waiting]\n"
        "        return [self._waiting[grant].offer for grant in waiting]",
    ),
    in_worker(
        "a worker starts what is behind one that it returns",
        "attempt",
        "runs returned",
        "ORDER|STARTED_IN_ORDER|START_ONCE",
        "for offer in self._waiting.close(attempt.queue, report.grant): => for offer in ():",
    ),
    in_worker(
        "a worker takes offers before the leader knows what it has returned",
        "attempt",
        "runs returned",
        "ORDER|STARTED_IN_ORDER|START_ONCE",
        "if offer.grant <= queue.barrier or queue.is_closed: => if offer.grant <= queue.barrier:",
    ),
    in_worker(
        "a worker starts what comes behind a gap",
        "receiver",
        "runs with losses",
        "ORDER|STARTED_IN_ORDER|START_ONCE",
        "if isinstance(message.body, Offers) and message.number > received.upto + 1:"
        " => if isinstance(message.body, Offers) and message.number < 1:",
    ),
    in_worker(
        "a worker starts what runs already when it is offered again",
        "receiver",
        "runs with losses, runs lost",
        "START_ONCE .*started before|GRANT .*twice",
        "if self._is_answered(offer.execution_id, offer.grant) or is_copy:"
        " => if self._outbox.answer(offer.execution_id, offer.grant):",
    ),
    in_worker(
        "a worker takes the run of a leader that is over",
        "receiver",
        "leader pauses, runs of old leaders",
        "START_ONCE",
        "self.refused += 1\n                continue"
        " => self.refused += 1\n                if isinstance(message.body, Offers):\n"
        "                    self._offers(message.body, is_copy=False)\n                continue",
    ),
)
"""Runs (LEADER 5 and 6)."""
