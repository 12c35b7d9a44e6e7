"""The names of things, as types that cannot be mixed up."""

from typing import NewType

ExecutionId = NewType("ExecutionId", int)
"""The FIFO ticket: smaller was admitted earlier."""
QueueId = NewType("QueueId", int)
"""One line: an action, or an action and a concurrency key."""
Attempt = NewType("Attempt", int)
"""Number of the grant, from 1. Claim and finish name it: that is the fence (P6)."""
WorkerId = NewType("WorkerId", str)
"""A UUID, new at each start of a worker process."""
