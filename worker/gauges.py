"""Lets a scrape look at the session that serves: what runs, how old its lease is, whether it may publish.

In: the parts of a session, at its beginning. Out: gauges that ask them; those of the session before are over.
"""

from turnstile.common.broker.publisher import Publisher
from turnstile.worker.attempt import Attempts
from turnstile.worker.clock import clock
from turnstile.worker.lease import Lease
from turnstile.worker.metrics import CONCURRENCY, LEASE_AGE, LEASE_DURATION, PUBLISHER_BLOCKED, RUNNING
from turnstile.worker.settings import WorkerSettings


def show(settings: WorkerSettings, attempts: Attempts, lease: Lease, publisher: Publisher) -> None:
    """Have the gauges of this process show this session from now on."""
    RUNNING.read_from(lambda: attempts.running)
    CONCURRENCY.read_from(lambda: settings.worker_concurrency)
    LEASE_AGE.read_from(lambda: _age_seconds(lease))
    LEASE_DURATION.read_from(lambda: lease.terms.lease_seconds)
    PUBLISHER_BLOCKED.read_from(lambda: float(publisher.blocked))


def _age_seconds(lease: Lease) -> float | None:
    renewed_at = lease.evidence.renewed_at
    return None if renewed_at is None else clock() - renewed_at
