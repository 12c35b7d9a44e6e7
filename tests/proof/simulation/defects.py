"""Planted bugs: each interleaving that a rule of the leader or the worker prevents, with that rule taken out.

A defect is a change of the text of one module, made before anything imports it, in a process of its own. It
is caught if a story of a few hundred shows a violation. `python -m tests.proof.simulation defects` plants
all.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LEADER: Final = "turnstile.executor.leader"
_WORKER: Final = "turnstile.worker.core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One planted bug."""

    name: str
    """What is wrong."""
    module: str
    old: str
    """Occurs once in the module."""
    new: str


def _leader(name: str, module: str, old: str, new: str) -> Defect:
    return Defect(name=name, module=f"{_LEADER}.{module}", old=old, new=new)


def _worker(name: str, module: str, old: str, new: str) -> Defect:
    return Defect(name=name, module=f"{_WORKER}.{module}", old=old, new=new)


DEFECTS: Final = (
    # Leadership and turns.
    _leader(
        "a turn with an unknown outcome is sent again without a new epoch",
        "turns",
        "                turn, is_committed = await self._settle(lead, turn)\n",
        "                is_committed = False\n",
    ),
    _leader(
        "a turn with an unknown outcome counts as committed",
        "turns",
        "        if newest == NewestTurn(epoch=turn.epoch, number=turn.number):\n"
        "            return turn, True\n",
        "        if newest is not None:\n            return turn, True\n",
    ),
    _leader(
        "a turn that was committed is sent again",
        "turns",
        "        if newest == NewestTurn(epoch=turn.epoch, number=turn.number):\n"
        "            return turn, True\n",
        "",
    ),
    _leader(
        "a leader goes on after its time without a commit",
        "turns",
        "        if now - self._committed_at > self.times.leadership:\n            # Another",
        "        if now < 0:\n            # Another",
    ),
    _leader(
        "a leader answers heartbeats while its leadership is in doubt",
        "turns",
        "        return now - self._committed_at < self.times.certain",
        "        return True",
    ),
    _leader(
        "inputs are acknowledged before they are committed",
        "turns",
        "        self._bury(lead, taken)\n        try:",
        "        self._bury(lead, taken)\n        self.broker.acknowledge(taken.deliveries)\n        try:",
    ),
    _leader(
        "offers leave before the commit",
        "turns",
        "        turn = await self._write(lead, turn, taken)\n",
        "        await self._offer(lead, out)\n"
        "        await self.broker.publish(lead.sessions.take_out(0.0))\n"
        "        turn = await self._write(lead, turn, taken)\n",
    ),
    _leader(
        "an end that no worker saw is not stored for listeners",
        "turns",
        "event for event, end in zip(events, out.finished, strict=True) if end.report is None",
        "event for event, end in zip(events, out.finished, strict=True) if end is None",
    ),
    _leader(
        "a new leader does not publish the events of the last turn again",
        "turns",
        "        if lead.memory.unpublished:\n",
        "        if False:\n",
    ),
    _leader(
        "a leader does not look for duplicates in the database",
        "turns",
        "        if any(missing):\n            lead.admission.learn",
        "        if False:\n            lead.admission.learn",
    ),
    _leader(
        "a leader that meets a higher epoch stays",
        "turns",
        "        if lead.sessions.epoch_above:\n",
        "        if lead.sessions.epoch_above < 0:\n",
    ),
    _leader(
        "a poisonous input is tried for ever",
        "turns",
        "            self._poison.update(each.delivery_key for each in taken.deliveries)\n",
        "",
    ),
    _leader(
        "after an outage of the broker no lease begins anew",
        "turns",
        "                lead.sessions.renew_all(self.clock.monotonic())\n",
        "",
    ),
    # What is written and loaded.
    _leader(
        "what lives for long gets no row of its own",
        "writing",
        "        if _lives(state, row):\n            rows.waiting.append(row)\n",
        "",
    ),
    _leader(
        "what lives for long and was granted gets no row of its own",
        "writing",
        "    if row.id in state.executions:\n        return True\n",
        "",
    ),
    _leader(
        "the low id rises past what has no row",
        "writing",
        "        memory.low_id = rows.low_id = recent[count - 1].id + 1",
        "        memory.low_id = rows.low_id = recent[-1].id + 1",
    ),
    _leader(
        "a grant row is deleted with the first end of it",
        "writing",
        "            if not memory.left_of[key]:\n",
        "            if key in memory.left_of and key not in rows.grants_over:\n",
    ),
    _leader(
        "a change of an execution with a past is not written",
        "writing",
        "            rows.live.append(live_row(execution))\n",
        "            if execution.attempt < 2:\n                rows.live.append(live_row(execution))\n",
    ),
    _leader(
        "the row of an ended execution with a past stays",
        "writing",
        "            rows.live_over.append(execution_id)\n",
        "            pass\n",
    ),
    _leader(
        "totals are not written",
        "writing",
        "        totals[ref] = enqueued, completed + 1\n",
        "        totals[ref] = enqueued, completed\n",
    ),
    _leader(
        "a load forgets cancels",
        "loading",
        '"cancel_reason", "grant",',
        '"grant",',
    ),
    _leader(
        "a load forgets how often an execution was reclaimed",
        "loading",
        '"status", "attempt", "failures", "reclaims",',
        '"status", "attempt", "failures",',
    ),
    _leader(
        "a load forgets what is delayed",
        "loading",
        "        state.set_timer(row.due_at, execution)\n",
        "        pass\n",
    ),
    _leader(
        "a load gives what is at a worker to another one",
        "loading",
        "        if waiting.id in granted:\n",
        "        if waiting.id in granted and waiting.id % 50:\n",
    ),
    _leader(
        "a load gives an execution the grant that it had before",
        "loading",
        "(now is None or now.grant == Grant(row.epoch, counter))",
        "True",
    ),
    _leader(
        "ids are given again after a change of leader",
        "loading",
        "next_id=loaded.reserved_id)",
        "next_id=max((r.id for r in loaded.waiting), default=0) + 1)",
    ),
    _leader(
        "early cancels are forgotten by a change of leader",
        "admission",
        "        self._early = {row.id: row for row in early}\n",
        "        self._early: dict[int, EarlyCancelRow] = {}\n",
    ),
    _leader(
        "copies inside one turn are two executions",
        "admission",
        "            if (first := self._pending.get(key)) is not None:\n",
        "            if (first := self._pending.get(None)) is not None:\n",
    ),
    # Workers, at the leader.
    _leader(
        "a worker is lost as soon as its lease is over",
        "sessions",
        "        if len(returned) < 2:\n            return\n",
        "",
    ),
    _leader(
        "a heartbeat before the probe does not keep its worker",
        "sessions",
        "session.probe = now + session.row.lease_seconds, None\n        if each.epoch_seen",
        "_ = now + session.row.lease_seconds, None\n        if each.epoch_seen",
    ),
    _leader(
        "a worker takes offers before it has answered the welcome",
        "sessions",
        "is_taking=session.is_answered and row.is_taking",
        "is_taking=row.is_taking",
    ),
    _leader(
        "what a worker does not hold is not offered again",
        "sessions",
        "                self.offer_again.append(execution)\n",
        "                pass\n",
    ),
    _leader(
        "what a worker should not hold is not cancelled there",
        "sessions",
        "            if execution is None or execution.grant != grant:\n                self._send(",
        "            if execution is None and grant is None:\n                self._send(",
    ),
    _leader(
        "a message that did not arrive is not sent again",
        "sessions",
        "            self._again.append(self._publication(session.row, sent.message))\n",
        "            pass\n",
    ),
    _leader(
        "all reports up to the newest one count as committed",
        "sessions",
        "            self._advance(session, session.committed)\n",
        "            self._advance(session, each.number)\n",
    ),
    _leader(
        "a leaving does not wait for the reports before it",
        "sessions",
        "        if session.leaving is not None and session.committed >= session.leaving:\n",
        "        if session.leaving is not None:\n",
    ),
    _leader(
        "a lost worker is not told to stop its attempts",
        "turns",
        "            lead.sessions.send(asked.worker_id, body)\n",
        "            if asked.worker_id in lead.state.workers:\n"
        "                lead.sessions.send(asked.worker_id, body)\n",
    ),
    _leader(
        "a lost worker is not dismissed",
        "sessions",
        "            if is_certain:\n                self._dismiss(each.sender)\n",
        "            pass\n",
    ),
    _leader(
        "a worker is not written before it is answered",
        "sessions",
        "        self.rows[row.worker_id] = row\n        yield self._changed(session)\n",
        "        yield self._changed(session)\n",
    ),
    _leader(
        "an attempt that does not stop is never ended",
        "watchdog",
        "                elif now - since > GRACE_SECONDS:\n",
        "                elif now < 0:\n",
    ),
    # Workers, at the worker.
    _worker(
        "a worker runs a copy of an offer",
        "receiver",
        "            if self._is_answered(offer.execution_id, offer.grant) or is_copy:\n",
        "            if self._is_answered(offer.execution_id, offer.grant) and is_copy is None:\n",
    ),
    _worker(
        "a worker listens to a leader that is over",
        "session",
        "        return message.epoch == self.epoch\n",
        "        return True\n",
    ),
    _worker(
        "a worker forgets an end that the broker has confirmed",
        "reporter",
        "            outbox.published(ports.clock.monotonic())\n",
        "            outbox.published(ports.clock.monotonic())\n"
        "            outbox.committed(outbox._next - 1, ports.clock.monotonic())\n",
    ),
    _worker(
        "a worker does not repeat what is not committed",
        "reporter",
        "        self._repeat_from(0)\n",
        "        pass\n",
    ),
    _worker(
        "a worker starts while its lease is in doubt",
        "attempt",
        "self._lease.standing(now) is Standing.CERTAIN:\n            waiting",
        "self._lease.standing(now) is not Standing.OVER:\n            waiting",
    ),
    _worker(
        "a worker goes on when its lease is over",
        "attempt",
        "            attempt.is_over = True\n            self._kill(attempt)\n",
        "            attempt.is_over = True\n",
    ),
    _worker(
        "a worker reports what it lost with its lease",
        "reporter",
        "        if lease.standing(ports.clock.monotonic()) is Standing.OVER:\n            return\n",
        "",
    ),
    _worker(
        "a lease counts from the answer and not from the question",
        "lease",
        "            self._renewed_at = self._sent_at[number]\n",
        "            self._renewed_at = max(self._sent_at.values()) + 10.0\n",
    ),
    _worker(
        "a worker starts what its time to live has ended",
        "attempt",
        "            if now < waiting.expires_at:\n",
        "            if True:\n",
    ),
    _worker(
        "a worker starts in the order in which offers arrive",
        "waiting",
        "heappush(queue.line, (offer.priority, offer.execution_id, offer.grant))",
        "heappush(queue.line, (offer.priority, -offer.execution_id, offer.grant))",
    ),
    _worker(
        "a worker starts more of a queue at once than it may",
        "waiting",
        "bool(self.line) and (self.at_once is None or self.running < self.at_once)",
        "bool(self.line)",
    ),
    _worker(
        "a worker that drains leaves before its ends are reported",
        "process",
        "        await clock.wait(attempts.idle, config.drain_seconds)\n",
        "        self.outbox.add(Leaving())\n        await clock.wait(attempts.idle, config.drain_seconds)\n",
    ),
    _worker(
        "a worker says nothing to an offer of what it has ended",
        "reporter",
        "            self._repeat_from(number)\n            return True\n",
        "            return True\n",
    ),
)
"""In the order of LEADER's chapters: leadership, turns, loading, workers."""


def plant(defect: Defect) -> None:
    """Import the changed module in place of the real one. Call it before anything else is imported."""
    spec = importlib.util.find_spec(defect.module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    assert source.count(defect.old) == 1, f"{defect.name}: its text occurs {source.count(defect.old)} times"
    module = importlib.util.module_from_spec(spec)
    sys.modules[defect.module] = module
    exec(compile(source.replace(defect.old, defect.new), spec.origin, "exec"), module.__dict__)
    package, _, name = defect.module.rpartition(".")
    setattr(sys.modules[package], name, module)


def is_caught(number: int, seeds: Iterable[int], seconds: float) -> bool:
    """Plant a defect in a process of its own and run stories until one shows it."""
    given = ",".join(map(str, seeds))
    command = [sys.executable, "-m", "tests.proof.simulation.planted", str(number), given]
    try:
        return subprocess.run(command, check=False, timeout=seconds, capture_output=True).returncode == 1
    except subprocess.TimeoutExpired:
        return False
