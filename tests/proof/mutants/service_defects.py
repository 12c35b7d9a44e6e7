"""Defects of the services: what they acknowledge, tell, repeat, wait for and stop."""

from typing import Final

from tests.proof.mutants.defect import Defect

_E2E: Final = "tests/e2e"
_WATCHDOG: Final = "executor/watchdog"

SERVICE_DEFECTS: Final = (
    Defect(
        name="requests are acknowledged before they are decided",
        file="executor/intake.py",
        before="            async for decided in decisions_over(aside, fresh, listener, size):\n",
        after="            subscription.ack(fresh)\n"
        "            async for decided in decisions_over(aside, fresh, listener, size):\n",
        caught_by=(
            f"{_E2E}/test_server_outages.py::test_a_database_frozen_or_gone_for_longer_than_a_lease_ends_no_work_and_acknowledges_nothing",
        ),
    ),
    Defect(
        name="what is kept aside is decided behind what came later",
        file="executor/intake.py",
        before="_until_available(listener, [*aside, *part])",
        after="_until_available(listener, [*part, *aside])",
        caught_by=(
            f"{_E2E}/test_locked_rows.py::test_requests_behind_a_locked_queue_pass_it_and_its_own_keep_their_order",
        ),
    ),
    Defect(
        name="an unroutable message counts as published",
        file="common/broker/bulk_channel.py",
        before="self.outcomes[index] = Publication.RETURNED if index in self.returned else outcome",
        after="self.outcomes[index] = outcome",
        caught_by=(
            "tests/integration/broker/test_broker_bulk_channel.py::test_an_unroutable_message_comes_back_and_the_others_are_confirmed",
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
        before='"x-single-active-consumer": True',
        after='"x-single-active-consumer": False',
        caught_by=(
            "tests/integration/broker/test_broker_deliveries.py::test_one_consumer_at_a_time_takes_requests_and_the_next_begins_with_what_was_left",
        ),
    ),
    Defect(
        name="what nobody can use is thrown away",
        file="executor/request_listener.py",
        before="            intake.letters.append(Letter(delivery=delivery, message=letter))\n",
        after="            del letter\n",
        caught_by=(
            f"{_E2E}/test_messages.py::test_bad_requests_are_answered_and_kept_and_a_thousand_good_ones_around_them_run",
        ),
    ),
    Defect(
        name="an early completion is acknowledged away",
        file="executor/completion_listener.py",
        before="if completion.execution_id in settled.early or completion.execution_id in settled.unknown:\n",
        after="if completion.execution_id in settled.unknown:\n",
        caught_by=(
            f"{_E2E}/test_early_messages.py::test_a_completion_before_its_row_and_before_its_end_is_tried_again_and_frees_one_slot",
        ),
    ),
    Defect(
        name="unsettled ends are not told again",
        file=f"{_WATCHDOG}/watchdog.py",
        before="            self.links.repeat_completions,\n",
        after="",
        caught_by=(
            f"{_E2E}/test_ends.py::test_every_end_that_its_worker_could_not_tell_is_kept_and_told_for_it",
        ),
    ),
    Defect(
        name="unclaimed offers are not repeated",
        file=f"{_WATCHDOG}/watchdog.py",
        before="            self.links.repeat_offers,\n",
        after="",
        caught_by=(
            "tests/proof/crash/test_crash_points.py::test_processes_that_die_between_two_steps_break_no_promise",
        ),
    ),
    Defect(
        name="the watchdog reclaims without a healthy lease",
        file=f"{_WATCHDOG}/health.py",
        before="        return self._seen_at if self._seen_at - self._well_since >= self._lease else None\n",
        after="        return self._seen_at\n",
        caught_by=("tests/unit/executor/test_watchdog_health.py",),
    ),
    Defect(
        name="a database that stood still counts as healthy",
        file=f"{_WATCHDOG}/health.py",
        before="or at - self._seen_at > self._lease / _GAP_SHARE or at < self._seen_at",
        after="or at < self._seen_at",
        caught_by=("tests/unit/executor/test_watchdog_health.py",),
    ),
    Defect(
        name="lost stops are not repeated",
        file=f"{_WATCHDOG}/watchdog.py",
        before="            self.leases.stop_overdue,\n",
        after="",
        caught_by=(f"{_E2E}/test_broker_down.py",),
    ),
    Defect(
        name="dead workers keep their work",
        file=f"{_WATCHDOG}/watchdog.py",
        before="            self.leases.reclaim_lost,\n",
        after="",
        caught_by=(
            f"{_E2E}/test_workers_lost.py::test_the_work_of_a_killed_worker_goes_back_to_the_head_and_is_run_again",
        ),
    ),
    Defect(
        name="a reclaimed worker is not told to stop",
        file=f"{_WATCHDOG}/leases.py",
        before="        await self._hand_over.tell("
        "[stop_of(i, attempt, worker_id=worker) for i, attempt, worker in stops])\n",
        after="",
        caught_by=(
            f"{_E2E}/test_partitions.py::test_cut_off_from_the_database_alone_work_goes_on_until_it_is_told_to_stop",
        ),
    ),
    Defect(
        name="a worker cut off from both servers runs on",
        file="worker/fence.py",
        before="        return Standing.IN_DOUBT if now < self.may_run_until(evidence) else Standing.OVER\n",
        after="        return Standing.IN_DOUBT\n",
        caught_by=("tests/unit/worker/test_fence.py", "tests/unit/worker/test_fence_lease.py"),
    ),
    Defect(
        name="a refusal of the claim is not obeyed",
        file="worker/record.py",
        before='    if (verdict := Verdict(row["verdict"])) is not Verdict.CLAIMED:\n',
        after='    if (verdict := Verdict(row["verdict"])) is Verdict.UNKNOWN:\n',
        caught_by=("tests/integration/protocol/test_claim.py",),
    ),
    Defect(
        name="long runs are acknowledged when they end",
        file="worker/consumer.py",
        before="            self._acknowledge_long_runs()\n",
        after="",
        caught_by=(
            f"{_E2E}/test_long_run_acknowledgements.py::test_a_run_of_several_acknowledgement_timeouts_runs_once_and_so_do_its_neighbours",
        ),
    ),
)
