"""Planted bugs of the protocol with workers, at the leader and at the worker (LEADER 5)."""

from typing import Final

from tests.proof.simulation.defect import in_leader, in_worker

OF_WORKERS_AT_THE_LEADER: Final = (
    in_leader(
        "a worker is lost as soon as a probe has come back through one queue",
        "sessions",
        "probes",
        "LOST .*before the probe",
        "        if len(returned) < 2:\n            return\n => ",
    ),
    in_leader(
        "a heartbeat before the probe does not keep its worker",
        "sessions",
        "probes",
        "LOST .*before the probe",
        "session.probe = now + session.row.lease_seconds, None\n        if each.epoch_seen"
        " => _ = now + session.row.lease_seconds, None\n        if each.epoch_seen",
    ),
    in_leader(
        "a probe that was lost is not sent again",
        "sessions",
        "probes",
        "STUCK .*granted",
        "(s.probe is None or now > s.probe_at + s.row.lease_seconds) => s.probe is None",
    ),
    in_leader(
        "after an outage of the broker no lease begins anew",
        "turns",
        "leader alone without broker",
        "LOST|RECLAIM",
        "                lead.sessions.renew_all(self.clock.monotonic())\n => ",
    ),
    in_leader(
        "after a pause of the leader no lease begins anew",
        "turns",
        "leader rests",
        "LOST|RECLAIM",
        "lead.sessions.renew_all(now) => pass",
    ),
    in_leader(
        "losses in an outage that the leader shared count",
        "sessions",
        "broker out",
        "ABANDON",
        "            session.is_counted = is_alone and not session.row.is_draining\n => ",
    ),
    in_leader(
        "a lost worker is gone before it is told",
        "sessions",
        "doubt",
        "CANCEL|OVERLAP",
        "self._send(session, Dismissed()) => pass",
    ),
    in_leader(
        "a lost worker is told after its attempts are given away",
        "turns",
        "doubt",
        "CANCEL|OVERLAP",
        "if not lead.backlog:\n                inputs += lead.sessions.lost(now) => pass",
        "lead.sessions.probed(each.queue, probe, now)"
        " => lead.sessions.probed(each.queue, probe, now)\n"
        "                    inputs += lead.sessions.lost(now)",
    ),
    in_leader(
        "the hello of a lost worker begins a session with numbers that were used",
        "sessions",
        "probes",
        "STUCK .*granted",
        "elif each.epoch_seen >= self.epoch: => elif False:",
    ),
    in_leader(
        "a cancel that was lost with its leader is not sent again",
        "watchdog",
        "cancels lost",
        "had ended|OVERDUE",
        "if since == now: => if since == now and execution.cancel_reason is None:",
    ),
    in_leader(
        "an attempt that does not stop is never ended",
        "watchdog",
        "ends lost",
        "OVERDUE|STUCK",
        "elif now - since > self._grace_seconds: => elif now < 0:",
    ),
    in_leader(
        "a worker takes offers before it has answered the welcome",
        "sessions",
        "hellos",
        "HELLO",
        "is_taking=session.is_answered and row.is_taking => is_taking=row.is_taking",
    ),
    in_leader(
        "a worker is not written before it is answered",
        "sessions",
        "hellos",
        "WELCOME",
        "self.rows[row.worker_id] = row\n        yield self._changed(session)"
        " => yield self._changed(session)",
    ),
    in_leader(
        "a worker that connects again is not drained any more",
        "sessions",
        "operator drains",
        "DRAIN .*asked to drain",
        "is_draining=known is not None and known.row.is_draining, => is_draining=False,",
    ),
    in_leader(
        "what a worker does not hold is not offered again",
        "sessions",
        "leader dies, offers lost, reconnects",
        "STUCK .*granted",
        "self.offer_again.append(execution) => pass",
    ),
    in_leader(
        "what a worker should not hold is not cancelled there",
        "sessions",
        "failover",
        "STRAY",
        "if execution is None or execution.grant != grant:\n                self._send("
        " => if execution is None and grant is None:\n                self._send(",
    ),
    in_leader(
        "a message that did not arrive is not sent again",
        "sessions",
        "offers lost",
        "STUCK .*granted",
        "self._again.append(self._publication(session.row, unreceived[index].message)) => pass",
    ),
    in_leader(
        "all reports up to the newest one count as committed",
        "sessions",
        "reports lost",
        "STUCK .*granted",
        "self._advance(session, session.committed) => self._advance(session, each.number)",
    ),
    in_leader(
        "what an earlier leader has committed counts as missing",
        "sessions",
        "leader dies, drains in peace",
        "DRAIN .*not committed",
        "        self._advance(session, each.kept_from - 1)\n => ",
    ),
    in_leader(
        "a leaving does not wait for the reports before it",
        "sessions",
        "drains",
        "LEAVE",
        "if session.leaving is not None and session.committed >= session.leaving:"
        " => if session.leaving is not None:",
    ),
    in_leader(
        "an account ends the attempt of another worker",
        "sessions",
        "identity",
        "had ended|OUTCOME|no complete run",
        "return execution if execution is not None and execution.grant == body.grant else None"
        " => return self._state.executions.get(body.execution_id)",
    ),
    in_leader(
        "a message without the secret of its worker counts",
        "sessions",
        "identity",
        "LOST .*without a probe|had ended|OUTCOME|RECLAIM",
        "self.refused += 1\n        return False => return True",
    ),
    in_leader(
        "a hello with another secret takes over a session",
        "sessions",
        "identity",
        "RECLAIM|STUCK|LOST",
        "if known.row.secret_hash != row.secret_hash: => if False:",
    ),
    in_leader(
        "an offer does not carry the rest of its time to live",
        "dispatcher",
        "answers lost",
        "START .*time to live",
        "expires_in_seconds=max(execution.expires_at - state.now, 0.0) if has_ttl else None,"
        " => expires_in_seconds=3600.0 if has_ttl else None,",
    ),
    in_leader(
        "what was offered is not recalled",
        "dispatcher",
        "recalls, runs changed",
        "START .*paused",
        "sessions.send(worker_id, Recall(queue=queue_name(queue), barrier=barrier)) => pass",
    ),
)
"""Workers, at the leader (LEADER 5)."""

OF_WORKERS: Final = (
    in_worker(
        "a worker runs a copy of an offer",
        "receiver",
        "offers lost, reconnects",
        "GRANT .*twice|ran in process",
        "if self._is_answered(offer.execution_id, offer.grant) or is_copy:"
        " => if self._is_answered(offer.execution_id, offer.grant) and is_copy is None:",
    ),
    in_worker(
        "a worker runs again what it has ended, for a leader that lost the commit",
        "reporter",
        "failover",
        "GRANT .*twice",
        "if had_started is None: => if True:",
    ),
    in_worker(
        "a worker listens to a leader that is over",
        "session",
        "leader pauses",
        "STUCK .*granted",
        "return message.epoch == self.epoch => return True",
    ),
    in_worker(
        "a worker that connects again counts on with the numbers of its last session",
        "session",
        "reconnects",
        "STUCK .*granted",
        "self.number, self.queue, self.is_welcome = number, queue, False\n"
        "        self.received = Received()"
        " => self.number, self.queue, self.is_welcome = number, queue, False",
    ),
    in_worker(
        "a worker forgets an end that the broker has confirmed",
        "reporter",
        "reports lost",
        "STUCK .*granted",
        "outbox.published(ports.clock.monotonic())"
        " => outbox.published(ports.clock.monotonic())\n"
        "            outbox.committed(outbox._next - 1, ports.clock.monotonic())",
    ),
    in_worker(
        "a worker does not repeat what is not committed",
        "reporter",
        "reports lost",
        "STUCK .*granted",
        "self._repeat_from(0) => pass",
    ),
    in_worker(
        "a worker starts while its lease is in doubt",
        "attempt",
        "answers lost",
        "START .*not certain",
        "self._lease.standing(now) is Standing.CERTAIN:\n            waiting"
        " => self._lease.standing(now) is not Standing.OVER:\n            waiting",
    ),
    in_worker(
        "a dismissed worker kills nothing before its next look at its lease",
        "receiver",
        "doubt",
        "OVERLAP",
        "self._attempts.lose_all() => pass",
    ),
    in_worker(
        "a worker goes on when its lease is over",
        "attempt",
        "cut off",
        "KILL|OVERLAP",
        "attempt.is_over = True\n            self._kill(attempt) => attempt.is_over = True",
    ),
    in_worker(
        "a broker's confirm counts as the answer to a heartbeat",
        "lease",
        "answers lost",
        "START .*not certain",
        "await broker.send_heartbeat(session.heartbeat(self._lease.sending(self._clock.monotonic())))"
        " => number = self._lease.sending(self._clock.monotonic())\n"
        "            await broker.send_heartbeat(session.heartbeat(number))\n"
        "            self._lease.answered(number)",
    ),
    in_worker(
        "a lease counts from the last heartbeat and not from the answered one",
        "lease",
        "cut off",
        "OVERLAP",
        "self._renewed_at = self._sent_at[number] => self._renewed_at = max(self._sent_at.values())",
    ),
    in_worker(
        "a probe through a session that no leader knows keeps the runs",
        "lease",
        "doubt in a new session",
        "OVERLAP",
        "if queue is None or not self._session.is_welcome:\n            return False"
        " => if queue is None:\n            return False",
    ),
    in_worker(
        "a worker starts what its time to live has ended",
        "attempt",
        "answers lost",
        "START .*time to live",
        "if now < waiting.expires_at: => if True:",
    ),
    in_worker(
        "what was recalled starts when its offer comes late",
        "attempt",
        "runs with losses",
        "START_ONCE .*recalled",
        "if offer.grant <= queue.barrier or queue.is_closed:"
        " => if queue.is_closed and offer.grant > queue.barrier:",
    ),
    in_worker(
        "a recall returns nothing that waits",
        "attempt",
        "runs changed",
        "START .*paused|START_ONCE .*recalled",
        "return self._remove_upto(queue.barrier, name, queue) => return []",
    ),
    in_worker(
        "a cancel that comes before its offer is forgotten",
        "receiver",
        "offers lost",
        "START_ONCE .*cancelled",
        "self._waiting.remove(body.grant)\n"
        "            self._outbox.add(unstarted_end(body, body.status, body.reason))"
        " => if self._waiting.remove(body.grant):\n"
        "                self._outbox.add(unstarted_end(body, body.status, body.reason))",
    ),
    in_worker(
        "a worker that drains leaves before its ends are reported",
        "process",
        "drains in peace",
        "LEAVE",
        "await clock.wait(attempts.idle, config.drain_seconds)"
        " => self.outbox.add(Leaving())\n        await clock.wait(attempts.idle, config.drain_seconds)",
    ),
)
"""Workers, at the worker (LEADER 5)."""
