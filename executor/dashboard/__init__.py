"""The dashboard: a page (`files`), and the live state behind it.

In: the rows of queues, slots and workers, polled once a second for all clients, and not at all without
clients (P9). Out: a `DashboardState` in memory, from which every list of queues is sorted, searched and cut
without a query; events for all streams; and the files of the page.
"""
