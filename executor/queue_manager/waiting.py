"""The executions of one queue and priority that wait, in the order of their ids, in 24 bytes each.

An id, the instant of its first enqueue and the instant of its expiry stand in three packed arrays, in chunks.
New ids are appended, the first one is taken, and both cost the same whatever waits. What returns is inserted
at its place (P2). The position of an id is found by two binary searches.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import Final, NamedTuple

_CHUNK_MAX: Final = 512


class Waiting(NamedTuple):
    """One execution that waits. Instants in seconds since 1970; `expires_at` is inf without a limit."""

    id: int
    queued_at: float
    expires_at: float


class _Chunk:
    __slots__ = ("expires_at", "ids", "queued_at", "soonest")

    def __init__(self) -> None:
        self.ids = array("q")
        self.queued_at = array("d")
        self.expires_at = array("d")
        self.soonest = inf
        """No instant of expiry in this chunk is earlier."""

    def add(self, index: int, entry: Waiting) -> None:
        self.ids.insert(index, entry.id)
        self.queued_at.insert(index, entry.queued_at)
        self.expires_at.insert(index, entry.expires_at)
        self.soonest = min(self.soonest, entry.expires_at)

    def remove(self, index: int) -> Waiting:
        return Waiting(self.ids.pop(index), self.queued_at.pop(index), self.expires_at.pop(index))

    def split(self) -> "_Chunk":
        """Move the second half into a new chunk."""
        half, rest = len(self.ids) // 2, _Chunk()
        for name in ("ids", "queued_at", "expires_at"):
            values = getattr(self, name)
            setattr(rest, name, values[half:])
            setattr(self, name, values[:half])
        rest.soonest = self.soonest
        return rest


class WaitingList:
    """Ids in ascending order, each at most once."""

    __slots__ = ("_chunks", "_exact_to", "_starts", "length", "soonest")

    def __init__(self) -> None:
        self._chunks = [_Chunk()]
        """None is empty, but one that is alone."""
        self._starts = [0]
        """For each chunk how many ids stood before it, counted from a common origin."""
        self._exact_to = 1
        """Up to this chunk `_starts` is exact; a removal in the middle moves what follows."""
        self.length = 0
        self.soonest = inf
        """No instant of expiry is earlier."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for chunk in self._chunks:
            yield from chunk.ids

    def after(self, execution_id: int) -> Iterator[int]:
        """Yield the ids that are larger than one, which need not be here."""
        if self.length and execution_id < self._chunks[-1].ids[-1]:
            number = self._chunk_of(execution_id)
            yield from self._chunks[number].ids[bisect_right(self._chunks[number].ids, execution_id) :]
            for chunk in islice(self._chunks, number + 1, None):
                yield from chunk.ids

    def first_ids(self, count: int) -> "array[int]":
        """Return a copy of the first ids."""
        found = array("q")
        for chunk in self._chunks:
            if len(found) >= count:
                break
            found += chunk.ids
        return found[:count]

    def entries(self) -> Iterator[Waiting]:
        """Yield all entries in order."""
        for chunk in self._chunks:
            yield from map(Waiting, chunk.ids, chunk.queued_at, chunk.expires_at)

    def first(self) -> int:
        """Return the first id. The list must not be empty."""
        return self._chunks[0].ids[0]

    def first_queued_at(self) -> float:
        """Return the instant of the enqueue of the first id. The list must not be empty."""
        return self._chunks[0].queued_at[0]

    def add(self, entry: Waiting) -> None:
        """Insert an entry at the place of its id."""
        chunks = self._chunks
        chunk = chunks[-1]
        if not self.length or entry.id > chunk.ids[-1]:
            if len(chunk.ids) >= _CHUNK_MAX:
                chunk = self._append_chunk()
            chunk.ids.append(entry.id)
            chunk.queued_at.append(entry.queued_at)
            chunk.expires_at.append(entry.expires_at)
            chunk.soonest = min(chunk.soonest, entry.expires_at)
        else:
            self._insert(entry)
        self.length += 1
        self.soonest = min(self.soonest, entry.expires_at)

    def _append_chunk(self) -> _Chunk:
        self._update_starts()
        chunk = _Chunk()
        self._starts.append(self._starts[-1] + len(self._chunks[-1].ids))
        self._chunks.append(chunk)
        self._exact_to = len(self._chunks)
        return chunk

    def _insert(self, entry: Waiting) -> None:
        number = self._chunk_of(entry.id)
        chunk = self._chunks[number]
        index = bisect_left(chunk.ids, entry.id)
        assert index == len(chunk.ids) or chunk.ids[index] != entry.id, "an id waits once"
        chunk.add(index, entry)
        if len(chunk.ids) > _CHUNK_MAX:
            self._chunks.insert(number + 1, chunk.split())
            self._starts.insert(number + 1, 0)
        self._exact_to = min(self._exact_to, number + 1)

    def extend(self, ids: "array[int]", queued_at: "array[float]", expires_at: "array[float]") -> None:
        """Append entries whose ids ascend and follow those of the list: three parallel arrays."""
        for start in range(0, len(ids), _CHUNK_MAX):
            chunk = self._append_chunk() if self._chunks[-1].ids else self._chunks[-1]
            end = start + _CHUNK_MAX
            chunk.ids, chunk.queued_at = ids[start:end], queued_at[start:end]
            chunk.expires_at = expires_at[start:end]
            chunk.soonest = min(chunk.expires_at)
            self.soonest = min(self.soonest, chunk.soonest)
        self.length += len(ids)

    def take_first(self) -> Waiting:
        """Remove and return the first entry. The list must not be empty."""
        chunk = self._chunks[0]
        entry = chunk.remove(0)
        self._starts[0] += 1
        self.length -= 1
        if not chunk.ids:
            self._drop_chunk(0)
        return entry

    def remove(self, execution_id: int) -> Waiting | None:
        """Remove and return an entry; None: it does not wait here."""
        if self.length and self.first() == execution_id:
            return self.take_first()
        place = self._place_of(execution_id)
        if place is None:
            return None
        number, index = place
        entry = self._chunks[number].remove(index)
        self.length -= 1
        self._exact_to = min(self._exact_to, number + 1)
        if not self._chunks[number].ids:
            self._drop_chunk(number)
        return entry

    def _drop_chunk(self, number: int) -> None:
        if self.length:
            del self._chunks[number], self._starts[number]
            if number < self._exact_to:
                self._exact_to = max(self._exact_to - 1, min(number, 1))

    def find(self, execution_id: int) -> Waiting | None:
        """Return the entry of an id; None: it does not wait here."""
        place = self._place_of(execution_id)
        if place is None:
            return None
        chunk = self._chunks[place[0]]
        return Waiting(execution_id, chunk.queued_at[place[1]], chunk.expires_at[place[1]])

    def position(self, execution_id: int) -> int | None:
        """Return the position of an id, from 1; None: it does not wait here."""
        place = self._place_of(execution_id)
        if place is None:
            return None
        self._update_starts()
        return self._starts[place[0]] - self._starts[0] + place[1] + 1

    def _place_of(self, execution_id: int) -> tuple[int, int] | None:
        """Return the number of the chunk where an id stands, and its index there."""
        if not self.length:
            return None
        number = self._chunk_of(execution_id)
        ids = self._chunks[number].ids
        index = bisect_left(ids, execution_id)
        return None if index == len(ids) or ids[index] != execution_id else (number, index)

    def _update_starts(self) -> None:
        for number in range(max(self._exact_to, 1), len(self._chunks)):
            self._starts[number] = self._starts[number - 1] + len(self._chunks[number - 1].ids)
        self._exact_to = len(self._chunks)

    def _chunk_of(self, execution_id: int) -> int:
        """Return the number of the chunk where an id stands or would be inserted."""
        return min(bisect_left(self._chunks, execution_id, key=_last_id), len(self._chunks) - 1)

    def expired(self, now: float, count_max: int) -> list[int]:
        """Return up to `count_max` ids whose time is over, and set `soonest` to the next instant.

        They stay in the list; with as many as `count_max` there may be more.
        """
        found: list[int] = []
        for chunk in self._chunks:
            if chunk.soonest > now:
                continue
            over = [i for i, at in zip(chunk.ids, chunk.expires_at, strict=True) if at <= now]
            found.extend(over[: count_max - len(found)])
            if len(found) >= count_max:
                return found
            chunk.soonest = min((at for at in chunk.expires_at if at > now), default=inf)
        self.soonest = min((chunk.soonest for chunk in self._chunks), default=inf)
        return found


def _last_id(chunk: _Chunk) -> int:
    return chunk.ids[-1]
