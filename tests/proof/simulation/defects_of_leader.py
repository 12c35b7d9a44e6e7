"""Planted bugs of leadership, turns, what is written and what is loaded (LEADER 1 to 4)."""

from typing import Final

from tests.proof.simulation.defect import in_leader

OF_LEADERSHIP: Final = (
    in_leader(
        "a turn with an unknown outcome is sent again without a new epoch",
        "turns",
        "unknown commits",
        "does not follow|violates a constraint",
        "turn, is_committed = await self._settle(lead, turn) => is_committed = False",
    ),
    in_leader(
        "a turn with an unknown outcome counts as committed",
        "turns",
        "unknown commits",
        "NOTHING_LOST|memory differs|KeyError|has no execution|violates a constraint",
        "if newest == NewestTurn(epoch=turn.epoch, number=turn.number):\n            return turn, True"
        " => if newest is not None:\n            return turn, True",
    ),
    in_leader(
        "a turn that was committed is sent again",
        "turns",
        "unknown commits",
        "violates a constraint: .*(exists|is not open)",
        "return turn, True\n        if newest != before:"
        " => return replace(turn, epoch=epoch, number=1), False\n        if newest != before:",
    ),
    in_leader(
        "the counter of grants begins again after an unknown outcome",
        "turns",
        "unknown commits",
        "grants do not have new numbers",
        "lead.number, lead.previous = 0, newest"
        " => lead.number, lead.previous, lead.state.grant_counter = 0, newest, 0",
    ),
    in_leader(
        "after a failover a leader goes on as if its last turns were there",
        "turns",
        "failover",
        "memory differs|violates a constraint|decided twice|STUCK|GRANT|raised",
        "        if newest != before:\n            raise Reload\n => ",
    ),
    in_leader(
        "a leader without its database keeps what it has taken",
        "turns",
        "leader without database",
        "LATE|STUCK",
        "if now - self._committed_at > self.times.leadership:\n            # Another"
        " => if now < 0:\n            # Another",
        "                if self.clock.monotonic() - self._committed_at > self.times.leadership:\n"
        "                    raise Reload from None\n"
        " => ",
    ),
    in_leader(
        "a leader that was deposed keeps its consumers",
        "turns",
        "leader pauses, leader without database",
        "LATE|STUCK",
        "await self.broker.close() => pass",
    ),
    in_leader(
        "a leader without the broker does not let another one lead",
        "turns",
        "leader without broker",
        "LATE|STUCK",
        "await self.store.resign()\n            raise Deposed => pass",
    ),
    in_leader(
        "a candidate does not notice turns of the leader",
        "turns",
        "calm",
        "TAKEOVER",
        "seen, since = newest, now => seen = newest",
    ),
    in_leader(
        "a candidate does not see that the session of a leader is gone",
        "turns",
        "leader dies",
        "GAP",
        "is_gone = is_gone and has_broker and now > since => is_gone = False",
    ),
    in_leader(
        "no turn is written while a load lasts",
        "turns",
        "slow loads",
        "LATE|STUCK",
        "await self.store.write(Turn(epoch=epoch, number=number + 1, at=0.0))"
        " => if number:\n                    await asyncio.wait({loading})\n                    break\n"
        "                await self.store.write(Turn(epoch=epoch, number=number + 1, at=0.0))",
    ),
    in_leader(
        "a leader that meets a higher epoch stays",
        "turns",
        "failover",
        "STUCK|STRAY",
        "if lead.sessions.epoch_above and => if lead.sessions.epoch_above < 0 and",
    ),
    in_leader(
        "a clock that was set back stops the time",
        "turns",
        "clock back",
        "STUCK",
        "max(loaded.now, loaded.instant_max) - asked_at => loaded.now - asked_at",
    ),
)
"""Leadership: the epoch, unknown outcomes, who leads (LEADER 1)."""

OF_TURNS: Final = (
    in_leader(
        "inputs are acknowledged before they are committed",
        "turns",
        "leader dies, slow commits",
        "NOTHING_LOST|STUCK",
        "_passed(CrashPoint.TURN_TAKEN, taken) => self.broker.acknowledge(taken.deliveries)",
    ),
    in_leader(
        "offers leave before the commit",
        "turns",
        "slow commits",
        "before its claim|without a grant|WELCOME|HELLO",
        "turn = await self._write(lead, turn, taken)"
        " => await self._offer(lead, out)\n"
        "        await self.broker.publish(lead.sessions.take_out(0.0))\n"
        "        turn = await self._write(lead, turn, taken)",
    ),
    in_leader(
        "an end that no worker saw is not stored for listeners",
        "turns",
        "calm",
        "EVENT .*heard nothing",
        "event for event, end in zip(events, out.finished, strict=True) if end.report is None"
        " => event for event, end in zip(events, out.finished, strict=True) if end is None",
    ),
    in_leader(
        "a new leader does not publish the events of the last turn again",
        "turns",
        "leader dies",
        "EVENT .*heard nothing",
        "if lead.memory.unpublished: => if False:",
    ),
    in_leader(
        "a turn is written before the events of the one before it are out",
        "turns",
        "dies before its events",
        "EVENT .*heard nothing",
        "        # A new leader publishes only the events of the newest turn again.\n"
        "        await self._published()\n"
        " => ",
    ),
    in_leader(
        "events that were not confirmed are forgotten",
        "turns",
        "listener hangs, leader dies",
        "EVENT .*heard nothing",
        "        if not are_published:\n            lead.outbox.store(events)\n => ",
    ),
    in_leader(
        "a stored event is deleted before it is confirmed",
        "turns",
        "listener hangs",
        "EVENT .*heard nothing",
        "while rows := outbox.first():"
        " => while rows := outbox.first():\n                outbox.confirm(rows)",
    ),
    in_leader(
        "a turn waits for a listener that hangs",
        "turns",
        "listener hangs",
        "GAP",
        "await asyncio.wait_for(self.broker.publish_events(events), self.times.event)"
        " => await asyncio.wait_for(self.broker.publish_events(events), 3600.0)",
    ),
    in_leader(
        "a leader does not look for duplicates in the database",
        "turns",
        "copies, leader dies",
        "key of execution .* exists|NOTHING_TWICE",
        "if any(missing):\n            lead.admission.learn => if False:\n            lead.admission.learn",
    ),
    in_leader(
        "copies inside one turn are two executions",
        "admission",
        "copies",
        "key of execution .* exists|NOTHING_TWICE",
        "if (first := self._pending.get(key)) is not None:"
        " => if (first := self._pending.get(None)) is not None:",
    ),
    in_leader(
        "a command that was decided stays in the inbox",
        "turns",
        "calm",
        "STUCK .* [1-9][0-9]* commands|decided twice",
        "inbox_over=taken.decided, => inbox_over=[],",
    ),
    in_leader(
        "a poisonous input is tried for ever",
        "turns",
        "refused",
        "POISON .*and 0 are dead|STUCK",
        "            self._poison |= keys & self._suspects\n => ",
    ),
    in_leader(
        "an input that fails once, for the fault of a failover, is poison",
        "turns",
        "failover",
        "POISON .*dead letters, and only",
        "self._poison |= keys & self._suspects => self._poison |= keys",
    ),
    in_leader(
        "the inputs of a refused turn are not taken singly",
        "turns",
        "refused",
        "POISON|STUCK",
        "        self._singly = max(self._singly, len(taken))\n => ",
    ),
    in_leader(
        "an end whose result cannot be stored is refused as a whole",
        "turns",
        "refused",
        "POISON|STUCK",
        "if not ids or not ids <= {row.id for row in turn.ended if row.result is not None}: => if True:",
    ),
    in_leader(
        "the event of an unstorable end says what its worker said",
        "turns",
        "refused",
        "EVENT .*ended as failed",
        "for each in zip(out.finished, turn.ended, strict=True)"
        " => for each in zip(out.finished, rows.ended, strict=True)",
    ),
)
"""Turns: before the commit, refusals, copies, listeners (LEADER 2 and 3)."""

OF_ROWS: Final = (
    in_leader(
        "what lives for long gets no row of its own",
        "writing",
        "long lives",
        "a load does not find it|memory differs",
        "        if _lives(state, row):\n            rows.waiting.append(row)\n => ",
    ),
    in_leader(
        "what lives for long and was granted gets no row of its own",
        "writing",
        "long lives",
        "a load does not find it|memory differs",
        "    if row.id in state.executions:\n        return True\n => ",
    ),
    in_leader(
        "the low id rises past what has no row",
        "writing",
        "long lives, copies",
        "a load does not find it|memory differs",
        "memory.low_id = rows.low_id = recent[count - 1].id + 1"
        " => memory.low_id = rows.low_id = recent[-1].id + 1",
    ),
    in_leader(
        "a grant row is deleted with the first end of it",
        "writing",
        "long lives, copies",
        "grant row|KeyError|memory differs",
        "if not memory.left_of[key]: => if key in memory.left_of and key not in rows.grants_over:",
    ),
    in_leader(
        "a change of an execution with a past is not written",
        "writing",
        "long lives",
        "memory differs|a load does not find it",
        "rows.live.append(live_row(execution))"
        " => if execution.attempt < 2:\n                rows.live.append(live_row(execution))",
    ),
    in_leader(
        "the row of an ended execution with a past stays",
        "writing",
        "long lives",
        "still has a row|LEFT .*live",
        "rows.live_over.append(execution_id) => pass",
    ),
    in_leader(
        "totals are not written",
        "writing",
        "calm",
        "memory differs from a load in totals",
        "totals[ref] = enqueued, completed + 1 => totals[ref] = enqueued, completed",
    ),
    in_leader(
        "ids are used before they are reserved",
        "writing",
        "calm",
        "not below the reserved id",
        "memory.reserved_id = rows.reserved_id = state.next_id + _RESERVED"
        " => memory.reserved_id = state.next_id + _RESERVED",
    ),
    in_leader(
        "a load forgets cancels",
        "loading",
        "cancels lost",
        "STUCK|memory differs",
        '"cancel_reason", "grant", => "grant",',
    ),
    in_leader(
        "a load forgets how often an execution was reclaimed",
        "loading",
        "reclaims",
        "memory differs from a load in executions",
        '"status", "attempt", "failures", "reclaims", => "status", "attempt", "failures",',
    ),
    in_leader(
        "a load forgets how often an execution has failed",
        "loading",
        "long lives",
        "memory differs from a load in executions",
        '"status", "attempt", "failures", "reclaims", => "status", "attempt", "reclaims",',
    ),
    in_leader(
        "a load forgets what is delayed",
        "loading",
        "long lives",
        "STUCK",
        "state.set_timer(row.due_at, execution) => pass",
    ),
    in_leader(
        "a load forgets when what waits expires",
        "loading",
        "long lives",
        "memory differs from a load in waiting",
        "waiting.id, waiting.queued_at, inf if waiting.expires_at is None else waiting.expires_at"
        " => waiting.id, waiting.queued_at, inf",
    ),
    in_leader(
        "a load forgets the units that are held",
        "loading",
        "long lives",
        "UNITS",
        "gate.held += units => pass",
    ),
    in_leader(
        "a load lets something start before it has counted the units that are held",
        "loading",
        "long lives",
        "UNITS",
        "for row in loaded.live:\n        _revive(state, row)\n    resume(state)\n"
        "    apply_changes(state)"
        " => apply_changes(state)\n    for row in loaded.live:\n        _revive(state, row)\n"
        "    resume(state)",
        "        state.changed_gates[gate] = None\n => ",
    ),
    in_leader(
        "a load forgets the tags of fair flows",
        "loading",
        "long lives",
        "memory differs from a load in (clocks|virtual)",
        "clock.virtual[change.priority] = change.virtual => continue",
    ),
    in_leader(
        "a load forgets the starts of rates",
        "loading",
        "long lives",
        "memory differs from a load in starts|RATE",
        "windows[name].instants.extend(instants) => pass",
    ),
    in_leader(
        "a load gives what is at a worker to another one",
        "loading",
        "long lives, copies",
        "memory differs from a load in (waiting|executions)|is granted while",
        "if waiting.id in granted: => if waiting.id in granted and waiting.id % 5:",
    ),
    in_leader(
        "a load gives an execution the grant that it had before",
        "loading",
        "returned",
        "LEFT .*grants",
        "(now is None or now.grant == Grant(row.epoch, counter)) => True",
    ),
    in_leader(
        "ids are given again after a change of leader",
        "loading",
        "leader dies",
        "violates a constraint: execution .* exists",
        "next_id=loaded.reserved_id) => next_id=max((r.id for r in loaded.waiting), default=0) + 1)",
    ),
    in_leader(
        "early cancels are forgotten by a change of leader",
        "admission",
        "early cancels",
        "EARLY|early cancels",
        "self._early = {row.id: row for row in early} => self._early: dict[int, EarlyCancelRow] = {}",
    ),
    in_leader(
        "what an early cancel names may start",
        "admission",
        "early cancels",
        "EARLY",
        "return bool(self._early or self._cancels) => return False",
    ),
)
"""What is written, and what a load must find (LEADER 4)."""
