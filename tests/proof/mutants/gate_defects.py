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
_POOL_SETTINGS: Final = "common/sql/55_pool_settings.sql"
_SETTINGS_TEST: Final = "tests/integration/protocol/test_pool_settings.py"
_TEST: Final = "tests/integration/protocol/test_gates.py"
_WALKS: Final = "tests/proof/gates/test_statements.py"
_POOL_WALKS: Final = (
    "tests/proof/gates/test_managed_pools.py::test_a_managed_pool_keeps_its_rules_in_random_walks[short]"
)

GATE_DEFECTS: Final = (
    Defect(
        name="units are counted as one",
        file=_GATES,
        before="SELECT g.id, (u.use ->> 'units')::integer FROM",
        after="SELECT g.id, 1 FROM",
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
        name="the list of a pool does not mind the turns of plain actions",
        file=_GATES,
        before="> (in_free.rival_priority, in_free.rival_tag, in_free.rival_place);",
        after="> (6, 0::bigint, 0::bigint);",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="an execution in the list of a full pool takes no worker slot in advance",
        file=_GATES,
        before="        free.places := free.places + 1;\n",
        after="        free.places := free.places;\n",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="starts stay in the future after the clock was set back",
        file="common/sql/62_reclaim.sql",
        before="UPDATE rate_start s SET granted_at = now_at FROM locked l",
        after="UPDATE rate_start s SET granted_at = s.granted_at FROM locked l",
        caught_by=(_TEST,),
    ),
    Defect(
        name="the list of a pool is not locked by a change of its actions",
        file=_GATES,
        before="           OR g.kind = 'pool' AND g.name = ANY (ARRAY(SELECT a.pool FROM action a WHERE a.id = ANY (in_action_ids)))\n",
        after="",
        caught_by=(_TEST,),
    ),
    Defect(
        name="wrong units of a gate are not corrected",
        file="common/sql/64_counters.sql",
        before="SELECT ROW(r.gate_id, r.new_held - r.old_held, r.new_depth - r.old_depth)::turnstile.gate_change",
        after="SELECT ROW(r.gate_id, 0, r.new_depth - r.old_depth)::turnstile.gate_change",
        caught_by=(_TEST,),
    ),
    Defect(
        name="a count of the workers resumes a paused pool",
        file=_POOLS,
        before="turnstile.capacity_of(c.paused, c.new_places, c.new_lead, c.new_leaving), c.new_places",
        after="turnstile.capacity_of(false, c.new_places, c.new_lead, c.new_leaving), c.new_places",
        caught_by=(_SETTINGS_TEST,),
    ),
    Defect(
        name="a paused pool grants",
        file=_POOLS,
        before="SELECT (CASE WHEN in_paused THEN 0 ELSE in_places + in_lead + in_leaving END)::integer",
        after="SELECT (in_places + in_lead + in_leaving)::integer",
        caught_by=(_SETTINGS_TEST,),
    ),
    Defect(
        name="executions in the list of a paused pool keep their units",
        file=_POOL_SETTINGS,
        before="    PERFORM turnstile.pause_list(list_id, wanted.paused);\n",
        after="",
        caught_by=(_SETTINGS_TEST,),
    ),
    Defect(
        name="the weights of a pool are ignored",
        file=_POOLS,
        before="SELECT 720720 / coalesce((in_weights ->> in_action_ref)::bigint, 1)",
        after="SELECT 720720::bigint",
        caught_by=(_SETTINGS_TEST, _POOL_WALKS),
    ),
    Defect(
        name="the weight of an action in a pool counts within one decision only",
        file=_POOLS,
        before="n.charged_tag + turnstile.step_of(p.weights, a.ref)",
        after="n.charged_tag + 720720",
        caught_by=(_POOL_WALKS,),
    ),
    Defect(
        name="a change of the weights of a pool counts with the next change of its order",
        file=_POOL_SETTINGS,
        before="weights = wanted.weights, updated_at",
        after="weights = CASE WHEN stored.fair <> wanted.fair THEN wanted.weights ELSE stored.weights END, updated_at",
        caught_by=(_POOL_WALKS,),
    ),
    Defect(
        name="in a pool by arrival all executions of an action precede those of a later one",
        file=_POOLS,
        before="ELSE greatest(turnstile.id_of_place(k.place), f.virtual_time) END AS tag",
        after="ELSE f.start_tag END AS tag",
        caught_by=(_POOL_WALKS,),
    ),
    Defect(
        name="what returns to a pool by arrival has its turn before the virtual time",
        file=_POOLS,
        before="ELSE greatest(turnstile.id_of_place(r.place), next_times[n.priority]) END AS new_tag",
        after="ELSE turnstile.id_of_place(r.place) END AS new_tag",
        caught_by=(_POOL_WALKS,),
    ),
    Defect(
        name="a resumed pool starts nothing until something ends",
        file=_POOL_SETTINGS,
        before="    IF NOT wanted.paused THEN\n",
        after="    IF false THEN\n",
        caught_by=(_SETTINGS_TEST, _POOL_WALKS),
    ),
    Defect(
        name="a change of the order of a pool loses the turns",
        file=_POOL_SETTINGS,
        before="SELECT array_agg(g::pool_turn) FILTER (WHERE g.place IS NOT NULL) INTO turns FROM gone g;",
        after="SELECT NULL INTO turns FROM gone g LIMIT 1;",
        caught_by=(_SETTINGS_TEST,),
    ),
    Defect(
        name="a change of the order of a pool keeps the debts of the old one",
        file=_POOL_SETTINGS,
        before="    IF stored.fair <> wanted.fair THEN\n",
        after="    IF false THEN\n",
        caught_by=(_SETTINGS_TEST,),
    ),
    Defect(
        name="the end of a run of a leaving worker is seen late",
        file=_POOLS,
        before="WHERE p.capacity IS NULL OR p.leaving > 0);",
        after="WHERE p.capacity IS NULL);",
        caught_by=(_POOL_TEST,),
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
        name="the rates of others in a list are not locked",
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
        name="an execution with a lower order key is outside the range that a gate reads",
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
        name="a list of a flow returns only in part",
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
        name="what starts takes no worker slot of its pool",
        file=_GRANT,
        before="greatest(p.held + p.more_held, 0) + n.started,\n p.depth, p.virtual_times, p.total_released + greatest",
        after="greatest(p.held + p.more_held, 0),\n p.depth, p.virtual_times, p.total_released + greatest",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="what a settle starts takes no worker slot of its pool",
        file=_GRANT,
        before="greatest(p.held + p.more_held, 0) + n.started,\n p.depth, p.virtual_times, p.total_released - p.more_held",
        after="greatest(p.held + p.more_held, 0),\n p.depth, p.virtual_times, p.total_released - p.more_held",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="a settle keeps the worker slot of its pool",
        file="common/sql/40_settle.sql",
        before="in_worker_slot_changes => worker_slot_changes, ",
        after="",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="a reclaim keeps the worker slot of its pool",
        file="common/sql/32_requeue.sql",
        before="PERFORM turnstile.release_worker_slots(worker_slot_changes, true);",
        after="NULL;",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="all executions of an action have one turn in their pool",
        file=_POOLS,
        before="f.start_tag + (row_number() OVER (PARTITION BY k.action_id, f.priority ORDER BY k.place) - 1) * f.step\n ELSE",
        after="f.start_tag ELSE",
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
        name="what a leaving worker runs takes worker slots of the others",
        file=_POOLS,
        before="c.new_lead, c.new_leaving), c.new_places, c.new_lead",
        after="c.new_lead, 0), c.new_places, c.new_lead",
        caught_by=(_POOL_TEST,),
    ),
    Defect(
        name="settles do not know that something waits for a worker slot",
        file=_POOLS,
        before="UPDATE public.worker_pool p SET waits = true WHERE",
        after="UPDATE public.worker_pool p SET waits = false WHERE",
        caught_by=(f"{_POOL_TEST}::test_settles_know_whether_something_waits_for_a_worker_slot",),
    ),
    Defect(
        name="pruning forgets that something waits for a worker slot",
        file=_PRUNING,
        before="c.id = p.id AND c.depth = 0;",
        after="c.id = p.id;",
        caught_by=(f"{_POOL_TEST}::test_settles_know_whether_something_waits_for_a_worker_slot",),
    ),
    Defect(
        name="settles look for turns for ever after something waited",
        file=_PRUNING,
        before="UPDATE worker_pool p SET waits = false",
        after="UPDATE worker_pool p SET waits = true",
        caught_by=(f"{_POOL_TEST}::test_settles_know_whether_something_waits_for_a_worker_slot",),
    ),
    Defect(
        name="a pool is deleted although an action that is being stored names it",
        file=_PRUNING,
        before="LOCK TABLE action IN SHARE MODE NOWAIT;",
        after="NULL;",
        caught_by=(_PRUNING_TEST,),
    ),
    Defect(
        name="a pool is deleted although its worker slots are taken",
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
    Defect(
        name="a return to the queue leaves no instant",
        file=_GATES,
        before="SELECT turnstile.id_of_place(g.place), clock_timestamp() FROM gone g\n",
        after="SELECT turnstile.id_of_place(g.place), clock_timestamp() FROM gone g WHERE false\n",
        caught_by=("tests/proof/history/test_stored_gates.py",),
    ),
    Defect(
        name="the history of gates forgets a return to the queue",
        file=_GATES,
        before="THEN turnstile.arrived_at_queue(in_execution_id, in_queued_at)\n",
        after="THEN in_queued_at\n",
        caught_by=("tests/proof/history/test_stored_gates.py",),
    ),
    Defect(
        name="the first return to the queue counts",
        file=_GATES,
        before="        ON CONFLICT (execution_id) DO UPDATE SET returned_at = excluded.returned_at\n",
        after="        ON CONFLICT (execution_id) DO NOTHING\n",
        caught_by=(
            "tests/integration/protocol/test_gates.py"
            "::test_of_two_returns_the_last_instant_is_in_the_history",
        ),
    ),
    Defect(
        name="a retry has waited since an earlier return",
        file=_GATES,
        before="""    SELECT greatest(in_queued_at,
                    (SELECT r.returned_at FROM public.gate_return r WHERE r.execution_id = in_execution_id))
""",
        after="""    SELECT coalesce(
        (SELECT r.returned_at FROM public.gate_return r WHERE r.execution_id = in_execution_id), in_queued_at)
""",
        caught_by=(
            "tests/integration/protocol/test_gates.py"
            "::test_a_retry_arrives_in_its_queue_after_an_earlier_return",
        ),
    ),
    Defect(
        name="returns stay in the future after the clock was set back",
        file="common/sql/62_reclaim.sql",
        before="FROM gate_return r WHERE r.returned_at > clock_timestamp()\n",
        after="FROM gate_return r WHERE false\n",
        caught_by=(
            "tests/integration/protocol/test_gates.py"
            "::test_after_the_clock_was_set_back_no_execution_returns_in_the_future",
        ),
    ),
)
