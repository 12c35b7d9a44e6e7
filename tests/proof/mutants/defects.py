"""Defects of the services around the core: access, webhooks, dead letters, reports, questions, the broker.

Those of the queue manager, the leader and the worker's core are in `tests.proof.queue_manager` and
`tests.proof.simulation`.
"""

from typing import Final

from tests.proof.mutants.defect import Defect

_AUDIENCE: Final = "tests/unit/asking/test_audience.py"
_DRAIN: Final = "tests/integration/executor/test_dead_letter_drain.py"
_EPISODES: Final = "tests/unit/common/test_episodes.py"
_HISTORY: Final = "tests/integration/history"
_TAKING: Final = "tests/integration/leader_broker/test_taking.py"
_TOKENS: Final = "tests/integration/security/test_tokens.py"

DEFECTS: Final = (
    # Access.
    Defect(
        name="a token for some actions reaches executions of others",
        file="executor/api/auth.py",
        change="if found is None or token.may_use(found): => if True:",
        caught_by=f"{_TOKENS}::test_actions_and_executions_of_others_do_not_exist_for_it",
    ),
    Defect(
        name="a revoked token stays valid",
        file="executor/stored_tokens.sql",
        change="ON t.revoked_at IS NULL AND  => ON ",
        caught_by=f"{_TOKENS}::test_a_revoked_token_is_refused_by_every_executor_within_the_bound",
    ),
    Defect(
        name="access without a token returns with the end of the last token",
        file="executor/stored_tokens.sql",
        change="SELECT EXISTS (SELECT FROM ledger.api_token) AS exists"
        " => SELECT EXISTS (SELECT FROM ledger.api_token WHERE revoked_at IS NULL) AS exists",
        caught_by=f"{_TOKENS}::test_the_first_token_ends_access_without_one_and_the_last_one_does_not_restore_it",
    ),
    Defect(
        name="a webhook goes to an address inside the network that is written as IPv6",
        file="executor/webhooks/ssrf_guard.py",
        change="return is_public(embedded) => return True",
        caught_by="tests/integration/webhooks/test_ssrf_guard.py::test_only_a_global_address_is_public",
    ),
    # Webhooks.
    Defect(
        name="a result is stored after the lease of its claim and the next claim",
        file="executor/webhooks/webhooks.sql",
        change="WHERE d.execution_id = n.id AND d.state = 'pending' AND d.claimed_until = n.claimed_until"
        " => WHERE d.execution_id = n.id AND d.state = 'pending'",
        caught_by=f"{_HISTORY}/test_webhooks.py"
        "::test_a_result_after_the_lease_and_the_next_claim_changes_nothing",
    ),
    Defect(
        name="a delivery whose executor died is never claimed again",
        file="executor/webhooks/webhooks.sql",
        change="WHERE p.claimed_until IS NULL OR p.claimed_until < clock_timestamp()"
        " => WHERE p.claimed_until IS NULL",
        caught_by=f"{_HISTORY}/test_webhooks.py::test_an_expired_lease_is_claimed_again",
    ),
    Defect(
        name="a delivery that was given back counts as an attempt",
        file="executor/webhooks/webhooks.sql",
        change="greatest(d.attempts - 1, 0) => d.attempts",
        caught_by=f"{_HISTORY}/test_webhooks.py::test_a_released_delivery_is_due_at_once_and_not_counted",
    ),
    Defect(
        name="an execution is pruned before its webhook is delivered",
        file="executor/history/retention.sql",
        change="WHERE d.state = 'delivered' FOR UPDATE OF d SKIP LOCKED => FOR UPDATE OF d SKIP LOCKED",
        caught_by=f"{_HISTORY}/test_retention.py::test_what_has_a_webhook_that_was_not_delivered_is_kept",
    ),
    # Dead letters.
    Defect(
        name="a dead letter is acknowledged although it could not be stored",
        file="executor/dead_letters/drain.py",
        change="if not await done_before(asyncio.sleep(_PAUSE_SECONDS), stop):\n"
        "                    return False"
        " => return True",
        caught_by=f"{_DRAIN}::test_without_a_database_the_letters_stay_in_the_broker",
    ),
    Defect(
        name="a dead letter that is never stored delays all others",
        file="executor/dead_letters/drain.py",
        change="if len(live) > 1: => if False:",
        caught_by=f"{_DRAIN}::test_a_dead_letter_that_the_database_never_finishes_to_store_delays_no_other",
    ),
    Defect(
        name="a replayed dead letter that no queue took is deleted",
        file="executor/dead_letters/store.py",
        change='await self._delete(confirmed, "replayed",  => await self._delete(ids, "replayed", ',
        caught_by="tests/integration/executor/test_dead_letters.py"
        "::test_an_unroutable_replay_keeps_the_dead_letter_with_the_reason",
    ),
    # Requests and reports.
    Defect(
        name="a request is acknowledged before its dead letter is confirmed",
        file="executor/leader/amqp.py",
        change="group = buried if message.letters else replied if message.replies else now => group = now",
        caught_by=f"{_TAKING}::test_before_its_dead_letter_is_confirmed_a_refused_message_is_delivered_again",
    ),
    Defect(
        name="two leaders consume the requests at once",
        file="common/broker/topology.py",
        change='single = _arguments(queue_type) | {"x-single-active-consumer": True}'
        " => single = _arguments(queue_type)",
        caught_by=f"{_TAKING}"
        "::test_the_next_leader_gets_what_the_closed_one_held_in_order_and_nothing_before",
    ),
    Defect(
        name="an unroutable message counts as published",
        file="common/broker/confirms.py",
        change="self.outcomes[index] = Publication.RETURNED if index in self.returned else outcome"
        " => self.outcomes[index] = outcome",
        caught_by="tests/integration/broker/test_channel.py"
        "::test_an_unroutable_message_comes_back_and_the_others_are_confirmed",
    ),
    Defect(
        name="a poll of commands begins behind those that take long to commit",
        file="executor/leader/inbox_bound.py",
        change="if entering & before: => if False:",
        caught_by="tests/integration/leader/test_inbox.py"
        "::test_the_bound_waits_for_those_that_may_have_drawn_an_id",
    ),
    Defect(
        name="logs are lost with an outage of the database",
        file="executor/report_listener.py",
        change="await asyncio.sleep(_PAUSE_SECONDS) => break",
        caught_by=f"{_HISTORY}/test_report_listener.py::test_an_outage_of_the_database_loses_nothing",
    ),
    Defect(
        name="an older progress replaces a newer one of the same batch",
        file="executor/history/reports.py",
        change="sorted(reports, key=lambda each: each.at) => sorted(reports, key=lambda each: -each.at)",
        caught_by=f"{_HISTORY}/test_reports.py::test_the_newest_progress_counts",
    ),
    # Questions, and what operators see.
    Defect(
        name="a question is answered from before it was asked",
        file="executor/asking/audience.py",
        change="self._arrived.append(_Asked( => self._due.append(_Asked(",
        caught_by=f"{_AUDIENCE}::test_an_answer_waits_for_a_turn_that_began_after_the_question",
    ),
    Defect(
        name="a question that its asker gave up is answered all the same",
        file="executor/asking/audience.py",
        change="if asked.expires_at > self._clock.monotonic() and not self._step(known, asked):"
        " => if not self._step(known, asked):",
        caught_by=f"{_AUDIENCE}::test_a_question_that_nobody_waits_for_any_more_is_not_answered",
    ),
    Defect(
        name="an executor that does not lead asks no other",
        file="executor/asking/asker.py",
        change='not (isinstance(found, Unanswered) and found.why == "not_leading") => True',
        caught_by="tests/integration/leader_process/test_questions.py"
        "::test_the_leader_of_another_host_is_asked_over_the_broker",
    ),
    Defect(
        name="a failing action beyond the first of an executor is counted as other",
        file="executor/metrics.py",
        change="if name == OTHER and (status in FAILURES or action_ref in FAILING_REFS): => if False:",
        caught_by="tests/unit/executor/test_failures_by_action.py"
        "::test_a_failing_action_beyond_the_first_does_not_hide_among_those_that_complete",
    ),
    Defect(
        name="a repeated failure that is not known to work has no end in the log",
        file="common/telemetry/logs.py",
        change="if episode.count or episode.is_repeated: => if False:",
        caught_by=f"{_EPISODES}"
        "::test_a_failure_that_is_not_seen_for_a_minute_ends_by_itself_with_its_count_and_fields",
    ),
    # Servers and processes.
    Defect(
        name="a call fails when the server is full, although a connection of the pool is free soon",
        file="common/database.py",
        change="if not pool.get_size() or now() >= deadline: => if True:",
        caught_by="tests/integration/database/test_full_database.py"
        "::test_calls_share_the_connections_of_the_pool_while_the_server_is_full",
    ),
    Defect(
        name="a worker without both servers continues to run",
        file="worker/fence.py",
        change="return Standing.IN_DOUBT if now < self.may_run_until(evidence) else Standing.OVER"
        " => return Standing.IN_DOUBT",
        caught_by="tests/unit/worker/test_fence.py::test_no_work_goes_on_in_doubt_without_a_recent_probe",
    ),
    Defect(
        name="a child process keeps the last progress for itself",
        file="worker/runners/child_main.py",
        change="        self._progress.close()\n => ",
        caught_by="tests/e2e/test_progress.py"
        "::test_progress_is_shown_while_it_runs_and_kept_with_the_attempt",
    ),
)
