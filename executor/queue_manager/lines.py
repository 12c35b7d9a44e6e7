"""Lines: who is next where several flows wait for one thing, by arrival or in fair turns (P12, P14).

The members of a line are queues (at a total), actions and executions (at a resource and at a pool), each with
the priority and the id of the execution that it stands for. A smaller priority goes first. Within a priority,
the order is that of ids, or start-time fair queueing between the flows (Goyal, Vin, Cheng 1996): an execution
has the start tag max(virtual time, finish tag of its flow), the smallest goes first, and ids decide between
equal tags. A line never looks at all its members: changes are noticed when a member comes to the front.
"""

from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

TAG_SCALE: Final = 720_720
"""Tags are integers in units of 1 / TAG_SCALE: a multiple of all weights from 1 to 16."""

Member = TypeVar("Member")

Rank = tuple[int, int, int]
"""Priority, start tag, id: what orders a line."""


class FairClock:
    """Virtual times and finish tags of one gate with fair order, by priority.

    Finish tags at or below the virtual time mean nothing and are forgotten. `changed` names what the next
    turn writes.
    """

    __slots__ = ("_prune_at", "changed", "finish", "virtual")

    def __init__(self) -> None:
        self.virtual: dict[int, int] = {}
        self.finish: dict[tuple[int, str], int] = {}
        self.changed: dict[tuple[int, str], None] = {}
        self._prune_at = 64

    def start(self, priority: int, flow: str) -> int:
        """Return the start tag of the next execution of a flow."""
        return max(self.virtual.get(priority, 0), self.finish.get((priority, flow), 0))

    def is_ahead(self, priority: int, flow: str) -> bool:
        """Return whether the start tag of a flow is later than the virtual time."""
        return self.finish.get((priority, flow), 0) > self.virtual.get(priority, 0)

    def charge(self, priority: int, flow: str, units: int, weight: int) -> None:
        """One execution of the flow passes: virtual time becomes its start tag."""
        tag = self.start(priority, flow)
        self.virtual[priority] = tag
        self.finish[priority, flow] = tag + units * TAG_SCALE // weight
        self.changed[priority, flow] = None
        if len(self.finish) > self._prune_at:
            self._prune()

    def _prune(self) -> None:
        over = [key for key, tag in self.finish.items() if tag <= self.virtual.get(key[0], 0)]
        for key in over:
            del self.finish[key]
            self.changed[key] = None
        self._prune_at = max(64, 2 * len(self.finish))


class Entry(Generic[Member]):
    """A member in a line."""

    __slots__ = ("flow", "is_listed", "member", "priority", "ticket")

    def __init__(self, member: Member, flow: str, priority: int, ticket: int) -> None:
        self.member, self.flow, self.priority, self.ticket = member, flow, priority, ticket
        self.is_listed = True

    def __lt__(self, other: "Entry[Member]") -> bool:
        return False


class Line(Generic[Member]):
    """An ordered set of members. Several lines may share a clock: together they are one gate."""

    __slots__ = ("_ahead", "_level", "_void", "clock", "entries")

    def __init__(self, clock: FairClock | None) -> None:
        self.clock = clock
        self.entries: dict[Member, Entry[Member]] = {}
        self._level: dict[int, list[tuple[int, Entry[Member]]]] = {}
        """By priority: those whose start tag is the virtual time, by id. In arrival order: all."""
        self._ahead: dict[int, list[tuple[int, int, Entry[Member]]]] = {}
        """By priority: the others, by a finish tag that their flow had, and id."""
        self._void = 0
        """How many entries of both were replaced or removed."""

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, member: Member, flow: str, priority: int, ticket: int) -> None:
        """Add a member, or change what it stands for."""
        entry = self.entries.get(member)
        if entry is not None:
            if entry.ticket == ticket and entry.priority == priority:
                return
            self.discard(member)
        entry = self.entries[member] = Entry(member, flow, priority, ticket)
        self._push(entry)

    def discard(self, member: Member) -> None:
        """Remove a member, if it is here."""
        entry = self.entries.pop(member, None)
        if entry is not None:
            entry.is_listed = False
            self._void += 1
            if not self.entries or self._void > 64 + 2 * len(self.entries):
                self._level.clear()
                self._ahead.clear()
                self._void = 0
                for other in self.entries.values():
                    self._push(other)

    def first(self) -> Entry[Member] | None:
        """Return the first entry."""
        if len(self.entries) == 1:
            return next(iter(self.entries.values()))
        if self.entries:
            for priority in sorted(self._level):
                entry = self._first_of(priority)
                if entry is not None:
                    return entry
                del self._level[priority], self._ahead[priority]
        return None

    def head(self) -> Entry[Member]:
        """Return the first entry. The line must not be empty."""
        entry = self.first()
        assert entry is not None, "the line is empty"
        return entry

    def rank(self, entry: Entry[Member]) -> Rank:
        """Return what orders an entry in this line."""
        tag = 0 if self.clock is None else self.clock.start(entry.priority, entry.flow)
        return entry.priority, tag, entry.ticket

    def in_order(self) -> list[Entry[Member]]:
        """Return all entries in order; costs as much as the line is long."""
        return sorted(self.entries.values(), key=self.rank)

    def _push(self, entry: Entry[Member]) -> None:
        priority, level = entry.priority, self._level.get(entry.priority)
        if level is None:
            level = self._level[priority] = []
            self._ahead[priority] = []
        if self.clock is not None and self.clock.is_ahead(priority, entry.flow):
            finish = self.clock.finish[priority, entry.flow]
            heappush(self._ahead[priority], (finish, entry.ticket, entry))
        else:
            heappush(level, (entry.ticket, entry))

    def _first_of(self, priority: int) -> Entry[Member] | None:
        level, clock = self._level[priority], self.clock
        if clock is None:
            while level and not level[0][1].is_listed:
                heappop(level)
            return level[0][1] if level else None
        ahead = self._ahead[priority]
        virtual = clock.virtual.get(priority, 0)
        while ahead and (ahead[0][0] <= virtual or not ahead[0][2].is_listed):
            self._push_again(heappop(ahead)[2])
        while level:
            entry = level[0][1]
            if entry.is_listed and not clock.is_ahead(priority, entry.flow):
                return entry
            self._push_again(heappop(level)[1])
        while ahead:
            finish, _, entry = ahead[0]
            if entry.is_listed and finish == clock.finish[priority, entry.flow]:
                return entry
            self._push_again(heappop(ahead)[2])
        return None

    def _push_again(self, entry: Entry[Member]) -> None:
        if entry.is_listed:
            self._push(entry)
