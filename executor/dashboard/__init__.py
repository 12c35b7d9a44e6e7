"""The dashboard: a page that shows what goes on, and the live reading behind it.

In: what the queues' rows, slots and workers say, read once a second for all who look, and not at all while
nobody does (P9). Out: a `Board` in memory, from which every list of queues is sorted, searched and cut
without asking the database again; events for all who listen; and the files of the page. Next: `live` runs
the reading, `reading` asks it, `board` keeps it, `history` remembers the last minutes, `stream` hands the
events on, `files` serves the page.
"""

from turnstile.executor.dashboard.board import Board, QueueOrder
from turnstile.executor.dashboard.files import page_routes
from turnstile.executor.dashboard.live import Live, LiveTimes

__all__ = ["Board", "Live", "LiveTimes", "QueueOrder", "page_routes"]
