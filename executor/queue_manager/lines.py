"""Lines: who is next where several flows wait for one thing, by arrival or in fair turns (P12, P14).

The members of a line are queues (at a total), actions and executions (at a resource and at a pool), each with
the priority and the id of the execution that it stands for. A smaller priority goes first. Within a priority,
the order is that of ids, or start-time fair queueing between the flows (Goyal, Vin, Cheng 1996): an execution
has the start tag max(virtual time, finish tag of its flow), the smallest goes first, and ids decide between
equal tags. A line never looks at all its members: changes are noticed when a member comes to the front.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeAlias, TypeVar

TAG_SCALE: Final = 720_720
"""Tags are integers in units of 1 / TAG_SCALE: a multiple of all weights from 1 to 16."""

Member = TypeVar("Member")

GONE: Final = -1
"""What the entry of a member that left stands for."""

Rank = tuple[int, int, int]
"""Priority, start tag, id: what orders a line."""


class FairClock:
    """Virtual times and finish tags of one gate with fair order, by priority.

    Finish tags at or below the virtual time mean nothing and are forgotten.
    """

    __slots__ = ("_prune_at", "finish", "name", "virtual")

    def __init__(self, name: str = "") -> None:
        self.name = name
        """`total <ref>`, `resource <name>` or `pool <name>`."""
        self.virtual: dict[int, int] = {}
        self.finish: dict[tuple[int, str], int] = {}
        self._prune_at = 64

    def start(self, priority: int, flow: str) -> int:
        """Return the start tag of the next execution of a flow."""
        return max(self.virtual.get(priority, 0), self.finish.get((priority, flow), 0))

    def charge(self, priority: int, flow: str, units: int, weight: int) -> None:
        """One execution of the flow passes: virtual time becomes its start tag."""
        tag = self.start(priority, flow)
        self.virtual[priority] = tag
        self.finish[priority, flow] = tag + units * TAG_SCALE // weight
        if len(self.finish) > self._prune_at:
            self._prune()

    def _prune(self) -> None:
        over = [key for key, tag in self.finish.items() if tag <= self.virtual.get(key[0], 0)]
        for key in over:
            del self.finish[key]
        self._prune_at = max(64, 2 * len(self.finish))


class Entry(Generic[Member]):
    """A member in a line."""

    __slots__ = ("flow", "member", "priority", "ticket")

    def __init__(self, member: Member, flow: str, priority: int, ticket: int) -> None:
        self.member, self.flow, self.priority, self.ticket = member, flow, priority, ticket

    def __lt__(self, other: "Entry[Member]") -> bool:
        return False


Level: TypeAlias = tuple[int, Entry[Member]]
"""Ticket and entry, of a flow that is not ahead of the virtual time. Void when the entry stands for another
ticket by now."""
Ahead: TypeAlias = tuple[int, int, Entry[Member]]
"""Finish tag of the flow, ticket and entry, of a flow that is not behind the virtual time."""


class Line(Generic[Member]):
    """An ordered set of members. Several lines may share a clock: together they are one gate."""

    __slots__ = ("_heaps", "_void", "clock", "entries")

    def __init__(self, clock: FairClock | None) -> None:
        self.clock = clock
        self.entries: dict[Member, Entry[Member]] = {}
        self._heaps: dict[int, tuple[list[Level[Member]], list[Ahead[Member]]]] = {}
        """By priority, unless one member is alone. In arrival order all are level."""
        self._void = 0
        """How many pairs of the heaps are void."""

    def put(self, member: Member, flow: str, priority: int, ticket: int) -> None:
        """Add a member, or change what it stands for."""
        entries = self.entries
        entry = entries.get(member)
        if entry is None:
            entry = entries[member] = Entry(member, flow, priority, ticket)
            if len(entries) == 2:
                self._push_all()
            elif len(entries) > 2:
                self._push(entry)
        elif entry.ticket != ticket or entry.priority != priority:
            entry.flow, entry.priority, entry.ticket = flow, priority, ticket
            if len(entries) > 1:
                self._count_void()
                self._push(entry)

    def discard(self, member: Member) -> None:
        """Remove a member, if it is here."""
        entry = self.entries.pop(member, None)
        if entry is not None:
            entry.ticket = GONE
            self._count_void()

    def first(self) -> Entry[Member] | None:
        """Return the first entry."""
        if len(self.entries) < 2:
            return next(iter(self.entries.values()), None)
        for priority in sorted(self._heaps):
            entry = self._first_of(priority)
            if entry is not None:
                return entry
            del self._heaps[priority]
        return None

    def head(self) -> Entry[Member]:
        """Return the first entry. The line must not be empty."""
        entry = self.first()
        assert entry is not None, "the line is empty"
        return entry

    def in_order(self) -> Iterator[Entry[Member]]:
        """Yield the entries in their order, each found when it is asked for; nothing may change meanwhile."""
        if len(self.entries) < 2:
            yield from self.entries.values()
            return
        for priority in sorted(self._heaps):
            yield from self._in_order_of(priority)

    def _in_order_of(self, priority: int) -> Iterator[Entry[Member]]:
        """Walk down both heaps: no entry is before what its pair says, nor a pair before the one above it."""
        heaps = self._heaps[priority]
        virtual = 0 if self.clock is None else self.clock.virtual.get(priority, 0)

        def pair(number: int, index: int) -> tuple[int, int, int, int, Entry[Member]]:
            *tag, ticket, entry = heaps[number][index]
            return tag[0] if tag else virtual, ticket, number, index, entry

        last: Entry[Member] | None = None
        found = [pair(number, 0) for number in (0, 1) if heaps[number]]
        heapify(found)
        while found:
            _, ticket, number, index, entry = heappop(found)
            if number == 2:
                # An entry that stands for an earlier ticket again has two pairs.
                if entry is not last:
                    yield entry
                last = entry
                continue
            for below in (2 * index + 1, 2 * index + 2):
                if below < len(heaps[number]):
                    heappush(found, pair(number, below))
            if entry.ticket == ticket:
                heappush(found, (self.rank(entry)[1], ticket, 2, 0, entry))

    def rank(self, entry: Entry[Member]) -> Rank:
        """Return what orders an entry in this line."""
        tag = 0 if self.clock is None else self.clock.start(entry.priority, entry.flow)
        return entry.priority, tag, entry.ticket

    def _count_void(self) -> None:
        """Count a pair that is void now; where most are, they are removed."""
        self._void += 1
        if self._void > 64 + 2 * len(self.entries):
            self._push_all()

    def _push_all(self) -> None:
        self._void = 0
        self._heaps.clear()
        for entry in self.entries.values():
            self._push(entry)

    def _push(self, entry: Entry[Member]) -> None:
        priority, clock = entry.priority, self.clock
        heaps = self._heaps.get(priority)
        if heaps is None:
            heaps = self._heaps[priority] = [], []
        if clock is not None:
            finish = clock.finish.get((priority, entry.flow), 0)
            if finish >= clock.virtual.get(priority, 0):
                heappush(heaps[1], (finish, entry.ticket, entry))
                return
        heappush(heaps[0], (entry.ticket, entry))

    def _first_of(self, priority: int) -> Entry[Member] | None:
        level, ahead = self._heaps[priority]
        clock = self.clock
        if clock is None:
            while level and level[0][1].ticket != level[0][0]:
                heappop(level)
            return level[0][1] if level else None
        virtual, finish = clock.virtual.get(priority, 0), clock.finish
        while level:
            ticket, entry = level[0]
            if entry.ticket == ticket and finish.get((priority, entry.flow), 0) <= virtual:
                break
            self._push_again(heappop(level))
        while ahead:
            tag, ticket, entry = ahead[0]
            if entry.ticket == ticket and tag >= virtual and tag == finish.get((priority, entry.flow), 0):
                if level and (tag > virtual or level[0][0] < ticket):
                    break
                return entry
            heappop(ahead)
            self._push_again((ticket, entry))
        return level[0][1] if level else None

    def _push_again(self, pair: Level[Member]) -> None:
        ticket, entry = pair
        if entry.ticket == ticket:
            self._push(entry)
