"""Defects of the gates after the queue: units, turns, rates, locks, and what returns."""

# ruff: noqa: E501  (quoted lines are as long as they are)

from typing import Final

from tests.proof.mutants.defect import Defect

_GATES: Final = "common/sql/12_gates.sql"
_GRANT: Final = "common/sql/10_grant.sql"
_POOLS: Final = "common/sql/15_pools.sql"
_PRUNING: Final = "common/sql/retention/workers.sql"
_PRUNING_TEST: Final = "tests/integration/retention/test_pruning.py::test_pools_that_no_action_names_are_deleted_with_their_turns"
_POOL_TEST: Final = "tests/integration/protocol/test_pool.py"
_TEST: Final = "tests/integration/protocol/test_gates.py"
_WALKS: Final = "tests/proof/gates/test_statements.py"

GATE_DEFECTS: Final = (
    Defect(
        name="units are counted as one",
        file=_GATES,
        before="SELECT g.id, (u.use ->> 'units')::integer FROM jsonb_array_elements(in_action.uses) u(use)",
        after="SELECT g.id, 1 FROM jsonb_array_elements(in_action.uses) u(use)",
        caught_by=(_TEST,),
    ),
    Defect(
        name="a flow does not pay for its turn",
        file=_GATES,
        before="h.start_tag + n.units * 720720::bigint / turnstile.weight_of(in_state.gate_id, e.action_id, w.queue_id)",
        after="h.start_tag + 0 * n.units",
        caught_by=(_WALKS,),
    ),
    Defect(
        name="all flows have the same weight",
        file=_GATES,
        before=" / turnstile.weight_of(in_state.gate_id, e.action_id, w.queue_id)",
        after="",
        caught_by=(_TEST, _WALKS),
    ),
    Defect(
        name="the window of a rate resets with its oldest start",
        file=_GATES,
        before="ELSE g.rate_starts - (g.starts_taken - oldest.number + 1) END",
        after="ELSE g.rate_starts - least(g.starts_taken - oldest.number + 1, g.rate_starts) + (g.starts_taken - oldest.number < g.rate_starts - 1 AND oldest.number > 1)::integer END",
        caught_by=(_TEST, _WALKS),
    ),
    Defect(
        name="executions without a worker keep their units at later gates",
        file=_GATES,
        before="    SELECT NOT in_served\n        OR in_route",
        after="    SELECT in_route",
        caught_by=(_TEST,),
    ),
    Defect(
        name="an action loses its workers although its gates cannot be emptied",
        file=_POOLS,
        before="WHERE a.id = ANY (served_ids || unserved_ids) AND a.id <> ALL (coalesce(held_ids, '{}'));",
        after="WHERE a.id = ANY (served_ids || unserved_ids);",
        caught_by=(_TEST,),
    ),
    Defect(
        name="a heavy execution is passed over",
        file=_GATES,
        before="sum(coalesce(n.units, 1000000000)) OVER (ORDER BY h.place) AS units_up_to",
        after="coalesce(n.units, 1000000000)::bigint AS units_up_to",
        caught_by=(_TEST, _WALKS),
    ),
    Defect(
        name="gates further down the routes are not locked",
        file=_GATES,
        before="    wanted_ids := turnstile.neighbouring_gates(wanted_ids);\n",
        after="",
        caught_by=(_WALKS,),
    ),
    Defect(
        name="the rates of others in a line are not locked",
        file=_GATES,
        before="WHERE a.route IS NOT NULL AND EXISTS (SELECT FROM pool p WHERE p.id = ANY (a.route)))",
        after="WHERE false)",
        caught_by=(_TEST,),
    ),
    Defect(
        name="a decision needs a gate that it has not locked",
        file=_GATES,
        before="SELECT CASE WHEN a.route <@ in_gate_ids\n AND (NOT in_returning OR NOT turnstile.has_to_return(\n a.served, a.route, a.route_units, h.queue_id",
        after="SELECT CASE WHEN true\n AND (NOT in_returning OR NOT turnstile.has_to_return(\n a.served, a.route, a.route_units, h.queue_id",
        caught_by=(_TEST,),
    ),
    Defect(
        name="a requeued execution keeps its units",
        file="common/sql/32_requeue.sql",
        before="    IF gate_changes IS NOT NULL THEN\n        PERFORM turnstile.change_gates(gate_changes);\n    END IF;\n",
        after="",
        caught_by=(_TEST, _WALKS),
    ),
    Defect(
        name="an execution with a lower place is outside the range that a gate reads",
        file=_GATES,
        before="        in_state.head_id := least(in_state.head_id, (SELECT min(p) FROM unnest(places) p\n WHERE turnstile.priority_of_place(p) = 3));\n",
        after="",
        caught_by=(_WALKS,),
    ),
    Defect(
        name="a turn before the turn of another flow is outside the range that a rate reads",
        file=_GATES,
        before="ORDER BY t.start_tag LIMIT 1), state.virtual_times[h.priority])\n        FROM unnest(coalesce(state.heads",
        after="ORDER BY t.start_tag LIMIT 1), 9000000000000000000)\n        FROM unnest(coalesce(state.heads",
        caught_by=(_TEST, _WALKS),
    ),
    Defect(
        name="executions before a closed gate do not return",
        file=_GATES,
        before="locked_ids := turnstile.try_gates(turnstile.neighbouring_gates(ARRAY[closed.id]));\n",
        after="locked_ids := turnstile.try_gates(ARRAY[closed.id]);\n",
        caught_by=(_TEST, _WALKS),
    ),
    Defect(
        name="one held gate stops the return from all gates",
        file=_GATES,
        before="            CONTINUE WHEN locked_ids IS NULL;\n            UPDATE gate g SET",
        after="            UPDATE gate g SET",
        caught_by=(_TEST,),
    ),
    Defect(
        name="what runs on an old route cannot be cancelled",
        file=_GATES,
        before="WHERE q.id = ANY (in_queue_ids) AND q.id = ANY (concerned_ids) AND NOT",
        after="WHERE q.id = ANY (concerned_ids) AND NOT",
        caught_by=(_TEST,),
    ),
    Defect(
        name="a line of a flow returns only in part",
        file=_GATES,
        before="WHERE w.line_id = l.id AND (leaves OR NOT has_turns)\n",
        after="WHERE w.line_id = l.id\n",
        caught_by=(_TEST,),
    ),
    Defect(
        name="a cancelled execution at a gate releases its units before its settle",
        file="common/sql/33_end_unstarted.sql",
        before="SELECT b.id, b.queue_id, ended_at, l.gate_ids, l.gate_units\n",
        after="SELECT b.id, b.queue_id, ended_at, NULL::bigint[], NULL::integer[]\n",
        caught_by=(_TEST, _WALKS),
    ),
    Defect(
        name="a flow keeps its turn for an execution that was cancelled",
        file=_GATES,
        before="WHERE t.line_id = ANY (ARRAY[n.line_id]) AND t.priority = n.priority AND t.place = n.place\n",
        after="WHERE t.line_id = ANY (ARRAY[n.line_id]) AND t.priority = n.priority AND t.place = -n.place\n",
        caught_by=(_WALKS,),
    ),
    Defect(
        name="what starts takes no place of its pool",
        file=_GRANT,
        before="greatest(p.held + p.more_held, 0) + n.started",
        after="greatest(p.held + p.more_held, 0)",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="a settle keeps the place of its pool",
        file="common/sql/40_settle.sql",
        before="in_place_changes => place_changes, ",
        after="",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="a reclaim keeps the place of its pool",
        file="common/sql/32_requeue.sql",
        before="PERFORM turnstile.release_places(place_changes, true);",
        after="NULL;",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="all executions of an action have one turn in their pool",
        file=_POOLS,
        before="f.start_tag + row_number() OVER (PARTITION BY k.action_id, f.priority ORDER BY k.place) - 1 AS tag",
        after="f.start_tag AS tag",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="a queue that cannot be locked keeps its turn",
        file=_POOLS,
        before="IF cardinality(in_lost_ids) > 0 THEN",
        after="IF false THEN",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="what a leaving worker runs takes places of the others",
        file=_POOLS,
        before="c.new_places + c.new_lead + c.new_leaving",
        after="c.new_places + c.new_lead",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="settles are not told that something waits for a place",
        file=_POOLS,
        before="UPDATE public.worker_pool p SET waits = true WHERE",
        after="UPDATE public.worker_pool p SET waits = false WHERE",
        caught_by=(f"{_POOL_TEST}::test_settles_know_whether_something_waits_for_a_place",),
    ),
    Defect(
        name="pruning forgets that something waits for a place",
        file=_PRUNING,
        before="c.id = p.id AND c.depth = 0;",
        after="c.id = p.id;",
        caught_by=(f"{_POOL_TEST}::test_settles_know_whether_something_waits_for_a_place",),
    ),
    Defect(
        name="settles look for turns for ever after something waited",
        file=_PRUNING,
        before="UPDATE worker_pool p SET waits = false",
        after="UPDATE worker_pool p SET waits = true",
        caught_by=(f"{_POOL_TEST}::test_settles_know_whether_something_waits_for_a_place",),
    ),
    Defect(
        name="a pool is deleted although an action that is being stored names it",
        file=_PRUNING,
        before="LOCK TABLE action IN SHARE MODE NOWAIT;",
        after="NULL;",
        caught_by=(_PRUNING_TEST,),
    ),
    Defect(
        name="a pool is deleted although its places are taken",
        file=_PRUNING,
        before="AND NOT EXISTS (SELECT FROM turnstile.live_slot s WHERE s.pool_id = p.id)",
        after="",
        caught_by=(_PRUNING_TEST,),
    ),
    Defect(
        name="turns are deleted without the locks of their gates",
        file=_GATES,
        before="SELECT g.id FROM gate g WHERE g.fair OR g.kind = 'pool' ORDER BY g.id FOR NO KEY UPDATE SKIP LOCKED);\n",
        after="SELECT g.id FROM gate g WHERE g.fair OR g.kind = 'pool' ORDER BY g.id);\n",
        caught_by=(_TEST,),
    ),
    Defect(
        name="a change of actions locks its queues after the gates",
        file="common/sql/51_actions.sql",
        before="    PERFORM turnstile.lock_available_queues(turnstile.first_queues(stored_ids, 1000), 2000);\n",
        after="",
        caught_by=(_TEST,),
    ),
    Defect(
        name="a request that needs more units than the capacity is admitted",
        file="common/sql/20_admit.sql",
        before="    IF uses_resources THEN\n",
        after="    IF false THEN\n",
        caught_by=(_TEST, _WALKS),
    ),
    Defect(
        name="a request for a resource with a capacity of 0 is refused",
        file="common/sql/20_admit.sql",
        before="AND g.capacity > 0 AND g.capacity < r.units\n",
        after="AND g.capacity < r.units\n",
        caught_by=(_TEST, _WALKS),
    ),
    Defect(
        name="an execution that ends at a gate loses its history",
        file="common/sql/33_end_unstarted.sql",
        before="gates = CASE WHEN has_gates\n",
        after="gates = CASE WHEN false\n",
        caught_by=("tests/integration/executor/test_reading_gates.py",),
    ),
)
