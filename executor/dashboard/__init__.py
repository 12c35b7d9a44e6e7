"""The dashboard: a page, and the live state behind it.

In: the rows of queues, slots and workers, polled once a second for all clients, and not at all without
clients (P9). Out: a `DashboardState` in memory, from which every list of queues is sorted, searched and cut
without a query; events for all streams; and the files of the page.
"""

from turnstile.executor.dashboard.files import page_routes
from turnstile.executor.dashboard.live import Live, LiveTimes
from turnstile.executor.dashboard.state import DashboardState, QueueOrder

__all__ = ["DashboardState", "Live", "LiveTimes", "QueueOrder", "page_routes"]
