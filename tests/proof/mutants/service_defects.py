"""Defects of the services: acknowledgements, publishing, redelivery, waiting and stopping."""

from typing import Final

from tests.proof.mutants.defect import Defect

_E2E: Final = "tests/e2e"
_GATES: Final = "tests/integration/executor/test_reading_gates.py"
_PACKS: Final = "tests/integration/worker/test_shared_messages.py"
_SCHEMAS: Final = "tests/integration/executor/test_parameter_schemas.py"
_SUBMISSIONS: Final = "tests/e2e/test_submissions.py"
_SWEEP_TURNS: Final = "tests/unit/executor/test_sweep_turns.py"
_TOKENS: Final = "tests/integration/security/test_tokens.py"
_WATCHDOG: Final = "executor/watchdog.py"

SERVICE_DEFECTS: Final = (
    Defect(
        name="an executor that has heard another one never sweeps again",
        file="executor/sweep_turns.py",
        before="self._clock() + self._interval_seconds",
        after='float("inf")',
        caught_by=(
            f"{_SWEEP_TURNS}::test_an_executor_stands_by_for_an_interval_after_each_notice_of_another",
        ),
    ),
    Defect(
        name="of several executors that swept at once none sweeps next",
        file="executor/sweep_turns.py",
        before="            self._stands_by_until = 0.0\n            return\n",
        after="            return\n",
        caught_by=(f"{_SWEEP_TURNS}::test_of_several_that_swept_at_once_the_last_one_heard_sweeps_next",),
    ),
    Defect(
        name="an executor announces a round in which a sweep failed",
        file="executor/sweep_turns.py",
        before='        self._awaited.add(f"{sweep} failed")\n',
        after="        pass\n",
        caught_by=(
            f"{_SWEEP_TURNS}::test_a_round_with_a_failed_sweep_is_not_complete_and_the_next_one_may_be",
        ),
    ),
    Defect(
        name="an executor without a broker lets the others stand by",
        file=_WATCHDOG,
        before="        if self._dispatcher.connected and self.redelivery.saw_all_pools:\n",
        after="        if self.redelivery.saw_all_pools:\n",
        caught_by=(
            "tests/integration/executor/test_sweep_turns.py::test_an_executor_that_may_not_reach_the_workers_sends_no_notice",
        ),
    ),
    Defect(
        name="a poll of submissions begins behind those that take long to commit",
        file="executor/submission_listener.py",
        before="            if entering & page.entering:\n",
        after="            if False:\n",
        # From outside, the sweep of each minute hides it.
        caught_by=(
            "tests/unit/executor/test_submission_bound.py::test_it_waits_for_the_transactions_that_were_open",
        ),
    ),
    Defect(
        name="the leader of the submissions waits for notifications, and never polls",
        file="executor/submission_listener.py",
        before="                await _first(stop.wait(), session.woken.wait(), seconds=_POLL_SECONDS)\n",
        after="                await _first(stop.wait(), session.woken.wait(), seconds=3600)\n",
        caught_by=(f"{_SUBMISSIONS}::test_without_a_notification_a_poll_finds_it",),
    ),
    Defect(
        name="no executor takes the submissions that a frozen leader leaves",
        file="executor/submission_listener.py",
        before="min_age_seconds=0.0 if leads else _LEFT_SECONDS",
        after="min_age_seconds=0.0 if leads else 3600.0",
        caught_by=(f"{_SUBMISSIONS}::test_another_executor_takes_what_a_frozen_leader_leaves",),
    ),
    Defect(
        name="requests are acknowledged before they are decided",
        file="executor/batch_consumer.py",
        before="            async for processed in results_of(blocked, fresh, handler, size):\n",
        after="            subscription.ack(fresh)\n"
        "            async for processed in results_of(blocked, fresh, handler, size):\n",
        caught_by=(
            f"{_E2E}/test_server_outages.py::test_a_database_frozen_or_gone_for_longer_than_a_lease_ends_no_work_and_acknowledges_nothing",
        ),
    ),
    Defect(
        name="a postponed request is decided after later requests of its queue",
        file="executor/batch_consumer.py",
        before="_until_available(handler, [*blocked, *part])",
        after="_until_available(handler, [*part, *blocked])",
        caught_by=(
            f"{_E2E}/test_locked_rows.py::test_requests_behind_a_locked_queue_overtake_it_and_its_own_keep_their_order",
        ),
    ),
    Defect(
        name="an unroutable message counts as published",
        file="common/broker/confirms.py",
        before="self.outcomes[index] = Publication.RETURNED if index in self.returned else outcome",
        after="self.outcomes[index] = outcome",
        caught_by=(
            "tests/integration/broker/test_channel.py::test_an_unroutable_message_comes_back_and_the_others_are_confirmed",
        ),
    ),
    Defect(
        name="a call fails when the server is full, although a connection of the pool is free soon",
        file="common/database.py",
        before="                if not pool.get_size() or now() >= deadline:\n",
        after="                if True:\n",
        caught_by=(
            "tests/integration/database/test_full_database.py::test_calls_share_the_connections_of_the_pool_while_the_server_is_full",
        ),
    ),
    Defect(
        name="a message delivered twice is two executions",
        file="executor/request_listener.py",
        before="        if delivery.message_id and request.idempotency_key is None\n",
        after="        if not delivery.message_id and request.idempotency_key is None\n",
        caught_by=(f"{_E2E}/test_messages.py::test_a_message_delivered_twice_is_one_execution",),
    ),
    Defect(
        name="several executors admit at once",
        file="common/broker/topology.py",
        before='        arguments=_arguments(queue_type) | {"x-single-active-consumer": True},\n',
        after="        arguments=_arguments(queue_type),\n",
        caught_by=(
            "tests/integration/broker/test_consumer.py::test_one_consumer_at_a_time_takes_requests_and_the_next_begins_with_what_was_left",
        ),
    ),
    Defect(
        name="an unusable message is dropped",
        file="executor/request_listener.py",
        before="                self.replies.append(Reply(delivery=delivery, message=letter))\n",
        after="                del letter\n",
        caught_by=(
            f"{_E2E}/test_messages.py::test_invalid_requests_are_rejected_and_stored_and_the_valid_ones_around_them_run",
        ),
    ),
    Defect(
        name="an early completion is acknowledged and lost",
        file="executor/completion_listener.py",
        before="completion.execution_id in settled.early or completion.execution_id in settled.unknown:\n",
        after="completion.execution_id in settled.unknown:\n",
        caught_by=(
            f"{_E2E}/test_early_messages.py::test_a_completion_before_its_row_and_before_its_end_is_retried_and_frees_one_slot",
        ),
    ),
    Defect(
        name="unsettled completions are not republished",
        file=_WATCHDOG,
        before="            self.redelivery.repeat_completions,\n",
        after="",
        caught_by=(
            f"{_E2E}/test_completions.py::test_every_outcome_that_a_killed_worker_did_not_publish_is_published_by_the_executor",
        ),
    ),
    Defect(
        name="unclaimed offers are not repeated",
        file=_WATCHDOG,
        before="            self.redelivery.repeat_offers,\n",
        after="",
        caught_by=(
            "tests/proof/crash/test_crash_points.py::test_processes_that_die_between_two_steps_break_no_promise",
        ),
    ),
    Defect(
        name="the watchdog reclaims without a healthy lease",
        file="executor/database_health.py",
        before="return self._seen_at if self._seen_at - self._healthy_since >= self._lease else None\n",
        after="return self._seen_at\n",
        caught_by=("tests/unit/executor/test_database_health.py",),
    ),
    Defect(
        name="a database that did not answer counts as healthy",
        file="executor/database_health.py",
        before="or at - self._seen_at > self._lease / _GAP_SHARE or at < self._seen_at",
        after="or at < self._seen_at",
        caught_by=("tests/unit/executor/test_database_health.py",),
    ),
    Defect(
        name="lost cancel messages are not repeated",
        file=_WATCHDOG,
        before="            self.reclaims.stop_overdue,\n",
        after="",
        caught_by=(f"{_E2E}/test_unreachable_servers.py",),
    ),
    Defect(
        name="dead workers keep their attempts",
        file=_WATCHDOG,
        before="            self.reclaims.reclaim_lost,\n",
        after="",
        caught_by=(
            f"{_E2E}/test_workers_lost.py::test_the_work_of_a_killed_worker_runs_again_within_its_lease_and_a_tick_heads_first",
        ),
    ),
    Defect(
        name="a reclaimed worker gets no cancel message",
        file=_WATCHDOG,
        before=(
            "        await self._dispatcher.publish(messages)\n        await self._protocol.cancels_published"
        ),
        after="",
        caught_by=(
            f"{_E2E}/test_worker_partitions.py::test_without_the_database_alone_work_continues_until_the_cancel_message",
        ),
    ),
    Defect(
        name="a worker without both servers continues to run",
        file="worker/fence.py",
        before="        return Standing.IN_DOUBT if now < self.may_run_until(evidence) else Standing.OVER\n",
        after="        return Standing.IN_DOUBT\n",
        caught_by=("tests/unit/worker/test_fence.py", "tests/unit/worker/test_lease.py"),
    ),
    Defect(
        name="a refused claim is ignored",
        file="worker/protocol.py",
        before='    if row["verdict"] != Verdict.CLAIMED:\n',
        after='    if row["verdict"] == Verdict.UNKNOWN:\n',
        caught_by=("tests/integration/protocol/test_attempts.py",),
    ),
    Defect(
        name="long runs are acknowledged when they end",
        file="worker/consumer.py",
        before="            self._acknowledge_long_runs()\n",
        after="",
        caught_by=(
            "tests/integration/worker/test_shared_messages.py::test_a_pack_of_long_runs_is_acknowledged_early_and_keeps_its_slots",
        ),
    ),
    Defect(
        name="a message is acknowledged after the first of its offers",
        file="worker/consumer.py",
        before="        elif not message.offers:\n            self._acknowledgements.add(message.delivery)\n",
        after="        else:\n            self._acknowledgements.add(message.delivery)\n",
        caught_by=(f"{_PACKS}::test_a_message_is_acknowledged_after_the_last_of_its_offers",),
    ),
    Defect(
        name="offers beyond the slots of a worker are dropped",
        file="worker/consumer.py",
        before="        self._subscription.release(deliveries, give_back=True)\n        return True\n",
        after="        self._subscription.release(deliveries, give_back=False)\n        return True\n",
        caught_by=(f"{_PACKS}::test_what_a_worker_cannot_take_goes_back_and_another_worker_runs_it",),
    ),
    Defect(
        name="a bound that was lowered for messages with several offers stays",
        file="worker/message_bound.py",
        before="max(0, self._lowered_by - math.ceil(unused / self._offers_per_message))",
        after="self._lowered_by",
        caught_by=(f"{_PACKS}::test_single_offers_after_packs_use_every_slot",),
    ),
    Defect(
        name="a worker of the previous version gets several offers in a message",
        file="executor/sql/workers.sql",
        before="min(w.offers_per_message)",
        after="max(w.offers_per_message)",
        caught_by=(
            "tests/integration/executor/test_watchdog.py::test_offers_share_messages_only_where_every_live_worker_of_the_pool_takes_them",
        ),
    ),
    Defect(
        name="queue-stats counts executions that wait at later gates as granted",
        file="executor/sql/queues.sql",
        before="sum(l.slots - coalesce(n.executions, 0))",
        after="sum(l.slots)",
        caught_by=(
            "tests/integration/executor/test_reading_queue_stats.py::test_with_gates_every_number_equals_a_recount_at_each_step",
        ),
    ),
    Defect(
        name="the position at a fair gate forgets the executions of the same flow",
        file="executor/sql/gates.sql",
        before="t.start_tag + n.before * t.step AS tag",
        after="t.start_tag AS tag",
        caught_by=(f"{_GATES}::test_the_position_at_a_fair_gate_is_the_order_in_which_executions_pass",),
    ),
    Defect(
        name="the list of a resource orders flows by arrival",
        file="executor/sql/gates.sql",
        before="t.start_tag + w.rank * t.step AS tag",
        after="0::bigint AS tag",
        caught_by=(f"{_GATES}::test_the_position_at_a_fair_gate_is_the_order_in_which_executions_pass",),
    ),
    Defect(
        name="a closed gate is not named while a slot is free",
        file="executor/queries/waiting_reason.py",
        before="if facts.gate is not None and facts.gate.closed is not None:",
        after="if facts.gate is not None and facts.gate.closed is not None and facts.position is None:",
        caught_by=(f"{_GATES}::test_a_closed_gate_is_named_by_what_waits_in_its_queue",),
    ),
    Defect(
        name="a wait at a resource does not name what its holders wait for",
        file="executor/queries/waiting_reason.py",
        before="root_cause=None if gate.closed is not None else _cause_of_holders(facts),",
        after="root_cause=None,",
        caught_by=(f"{_GATES}::test_the_cause_is_followed_from_holder_to_holder",),
    ),
    Defect(
        name="a failing action beyond the first of an executor is counted as other",
        file="executor/metrics.py",
        before="if name == OTHER and (status in FAILURES or action_ref in FAILING_REFS):",
        after="if False:",
        caught_by=(
            "tests/unit/executor/test_failures_by_action.py::test_a_failing_action_beyond_the_first_does_not_hide_among_those_that_complete",
        ),
    ),
    Defect(
        name="a token for some actions reaches executions of others",
        file="executor/api/auth.py",
        before="                if found is None or token.may_use(found):\n",
        after="                if True:\n",
        caught_by=(f"{_TOKENS}::test_actions_and_executions_of_others_do_not_exist_for_it",),
    ),
    Defect(
        name="a revoked token stays valid",
        file="executor/sql/tokens.sql",
        before="t.revoked_at IS NULL AND (t.expires_at",
        after="(t.expires_at",
        caught_by=(f"{_TOKENS}::test_a_revoked_token_is_refused_by_every_executor_within_the_bound",),
    ),
    Defect(
        name="access without a token returns with the end of the last token",
        file="executor/sql/tokens.sql",
        before="SELECT EXISTS (SELECT FROM api_token) AS exists",
        after="SELECT EXISTS (SELECT FROM api_token WHERE revoked_at IS NULL) AS exists",
        caught_by=(
            f"{_TOKENS}::test_the_first_token_ends_access_without_one_and_the_last_one_does_not_restore_it",
        ),
    ),
    Defect(
        name="a cancel by filter leaves no row for its executions",
        file="common/sql/41_cancel.sql",
        before="        PERFORM turnstile.log_cancels(moves, in_reasons[1]);\n",
        after="",
        caught_by=("tests/integration/executor/test_audit_log.py",),
    ),
    Defect(
        name="parameters are refused by schemas that were read before the request arrived",
        file="executor/parameter_schemas.py",
        before="await self.refresh()\n        doubted = await self._invalid_among(admissions, doubted)",
        after="doubted = await self._invalid_among(admissions, doubted)",
        caught_by=(f"{_SCHEMAS}::test_what_one_of_two_live_versions_can_run_is_never_refused",),
    ),
    Defect(
        name="a copy of an admitted request is refused by a newer schema",
        file="executor/parameter_schemas.py",
        before="if admissions[index].idempotency_key not in requests",
        after="if True",
        caught_by=(
            f"{_SCHEMAS}::test_a_copy_of_an_admitted_request_is_that_execution_whatever_the_schema_is_now",
        ),
    ),
    Defect(
        name="the schema of one worker counts beside a worker without one",
        file="common/sql/49_schemas.sql",
        before="coalesce(bool_or(k.id IS NOT NULL AND d.id IS NULL), false)",
        after="false",
        caught_by=(f"{_SCHEMAS}::test_beside_a_worker_without_a_schema_everything_fits",),
    ),
    Defect(
        name="an attempt ends before its last progress is written",
        file="worker/attempt.py",
        before="await self._gateway.progress.complete(offer)\n",
        after="",
        caught_by=(f"{_E2E}/test_progress.py",),
    ),
    Defect(
        name="a child process keeps the last progress for itself",
        file="worker/runners/child_main.py",
        before="self._progress.close()\n",
        after="",
        caught_by=(f"{_E2E}/test_progress.py",),
    ),
    Defect(
        name="a newer progress is dropped with the one that was written",
        file="worker/gateway.py",
        before="if self._waiting.get(offer) is progress:",
        after="if offer in self._waiting:",
        caught_by=(
            "tests/integration/protocol/test_progress_writer.py"
            "::test_what_is_reported_during_a_statement_is_in_the_next_one",
        ),
    ),
    Defect(
        name="functions of another version that lack what is called are an error of each call",
        file="common/database.py",
        before="        if lacking_since is not None and lacking_since >= self._other_functions_since:\n",
        after="        if False:\n",
        caught_by=(
            "tests/integration/protocol/test_other_functions.py"
            "::test_they_are_trouble_once_they_lack_what_is_called_until_a_migration",
        ),
    ),
    Defect(
        name="a repeated failure that is not known to work has no end in the log",
        file="common/telemetry/logs.py",
        before="                if episode.count or episode.is_repeated:\n",
        after="                if False:\n",
        caught_by=("tests/unit/common/test_episodes.py",),
    ),
)
