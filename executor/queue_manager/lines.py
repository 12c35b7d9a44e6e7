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
    """Virtual times and finish tags of one gate with fair order, by priority. Gates in arrival order have none.

    Finish tags at or below the virtual time mean nothing and are forgotten. `changed` names what the next turn
    writes.
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

    __slots__ = ("_ahead", "_level", "clock", "entries")

    def __init__(self, clock: FairClock | None) -> None:
        self.clock = clock
        self.entries: dict[Member, Entry[Member]] = {}
        self._level: dict[int, list[tuple[int, Entry[Member]]]] = {}
        """By priority: those whose start tag is the virtual time, by id. In arrival order: all."""
        self._ahead: dict[int, list[tuple[int, int, Entry[Member]]]] = {}
        """By priority: the others, by a finish tag that their flow had, and id."""

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, member: Member, flow: str, priority: int, ticket: int) -> None:
        """Add a member, or change what it stands for."""
        entry = self.entries.get(member)
        if entry is not None:
            if entry.ticket == ticket and entry.priority == priority:
                return
            entry.is_listed = False
        entry = self.entries[member] = Entry(member, flow, priority, ticket)
        self._push(entry)

    def discard(self, member: Member) -> None:
        """Remove a member, if it is here."""
        entry = self.entries.pop(member, None)
        if entry is not None:
            entry.is_listed = False
            if not self.entries:
                self._level.clear()
                self._ahead.clear()

    def first(self) -> Entry[Member] | None:
        """Return the first entry."""
        if not self.entries:
            return None
        for priority in sorted(self._level):
            entry = self._first_of(priority)
            if entry is not None:
                return entry
            del self._level[priority]
            self._ahead.pop(priority, None)
        return None

    def rank(self, entry: Entry[Member]) -> Rank:
        """Return what orders an entry in this line."""
        tag = 0 if self.clock is None else self.clock.start(entry.priority, entry.flow)
        return entry.priority, tag, entry.ticket

    def in_order(self) -> list[Entry[Member]]:
        """Return all entries in order; costs as much as the line is long."""
        return sorted(self.entries.values(), key=self.rank)

    def _push(self, entry: Entry[Member]) -> None:
        level = self._level.setdefault(entry.priority, [])
        if self.clock is not None:
            finish = self.clock.finish.get((entry.priority, entry.flow), 0)
            if finish > self.clock.virtual.get(entry.priority, 0):
                heappush(self._ahead.setdefault(entry.priority, []), (finish, entry.ticket, entry))
                return
        heappush(level, (entry.ticket, entry))

    def _first_of(self, priority: int) -> Entry[Member] | None:
        level, ahead = self._level[priority], self._ahead.get(priority, ())
        if self.clock is not None and ahead:
            virtual = self.clock.virtual.get(priority, 0)
            while ahead and (not ahead[0][2].is_listed or ahead[0][0] <= virtual):
                entry = heappop(ahead)[2]
                if entry.is_listed:
                    self._push(entry)
        while level:
            entry = level[0][1]
            if entry.is_listed and not self._is_ahead(entry):
                return entry
            heappop(level)
            if entry.is_listed:
                self._push(entry)
        while ahead:
            finish, _, entry = ahead[0]
            if entry.is_listed and self.clock and finish == self.clock.finish.get((priority, entry.flow), 0):
                return entry
            heappop(ahead)
            if entry.is_listed:
                self._push(entry)
        return None

    def _is_ahead(self, entry: Entry[Member]) -> bool:
        clock = self.clock
        if clock is None:
            return False
        virtual = clock.virtual.get(entry.priority, 0)
        return clock.finish.get((entry.priority, entry.flow), 0) > virtual
