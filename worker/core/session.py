"""The sessions of one worker id: one life of its queue after another.

In: messages of the leader, as they arrive. Out: those that count, to the receiver; hellos and heartbeats
that say which worker this is, the highest epoch that it has seen, and what has arrived of it.
"""

from collections.abc import Callable, Sequence

from turnstile.common.domain.errors import Unavailable
from turnstile.common.worker_protocol import Heartbeat, Hello, Sender, ToSession
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.core.ports import Ports, SessionQueue


class Received:
    """The numbers of one epoch's messages that have arrived in one session."""

    __slots__ = ("_beyond", "upto")

    def __init__(self) -> None:
        self.upto = 0
        """All up to this number have arrived."""
        self._beyond: set[int] = set()

    @property
    def has_gap(self) -> bool:
        """Whether something is missing before what has arrived."""
        return bool(self._beyond)

    def add(self, number: int) -> bool:
        """Note a number; False if it had arrived before."""
        if number <= self.upto or number in self._beyond:
            return False
        self._beyond.add(number)
        while self.upto + 1 in self._beyond:
            self.upto += 1
            self._beyond.remove(self.upto)
        return True


class Session:
    """Who this worker is, and what it has heard of the leader."""

    def __init__(self, worker_id: str, secret: str) -> None:
        self.worker_id = worker_id
        self._secret = secret
        self.number = 0
        """Of the present session, or of the last one."""
        self.queue: SessionQueue | None = None
        """None: there is no session now."""
        self.is_welcome = False
        """A leader knows this session; it is in the database, so every later leader knows it too."""
        self.was_welcome = False
        """Some session of this worker was known to a leader."""
        self.is_taking = True
        """False: it drains, and takes no offers."""
        self.not_ready: str | None = None
        """Why it takes no offers for now, other than that it drains."""
        self.is_leaving = False
        """Its last report says that it leaves."""
        self.epoch = 0
        """The highest epoch that was heard of."""
        self.received = Received()

    @property
    def sender(self) -> Sender:
        """What every message of this worker carries."""
        return Sender(worker_id=self.worker_id, session=self.number, secret=self._secret)

    def hello(self, config: WorkerConfig) -> Hello:
        """Return the message that begins a session."""
        return Hello(
            sender=self.sender,
            name=config.name,
            pools=config.pools,
            actions=config.actions,
            concurrency=config.concurrency,
            lease_seconds=config.lease_seconds,
            epoch_seen=self.epoch,
            is_taking=self.is_taking and self.not_ready is None,
            definitions=config.definitions,
            schedules=config.schedules,
            not_ready=self.not_ready,
            about=config.about,
        )

    def heartbeat(self, number: int) -> Heartbeat:
        """Return a heartbeat: it confirms everything that has arrived before it."""
        return Heartbeat(
            sender=self.sender,
            number=number,
            epoch_seen=self.epoch,
            received=self.received.upto,
            is_taking=self.is_taking and self.not_ready is None,
            not_ready=self.not_ready,
        )

    def begin(self, number: int, queue: SessionQueue) -> None:
        """Go on with a new queue: nothing of the old one arrives any more."""
        self.number, self.queue, self.is_welcome = number, queue, False
        self.received = Received()

    def end(self) -> None:
        """Note that the queue is gone."""
        self.queue, self.is_welcome = None, False

    def welcome(self) -> None:
        """Note that a leader knows this session."""
        self.is_welcome = self.was_welcome = True

    def admits(self, message: ToSession) -> bool:
        """Return whether a message is of the newest leader that was heard of, and note its epoch."""
        if message.epoch > self.epoch:
            self.epoch = message.epoch
            self.received = Received()
        return message.epoch == self.epoch


async def keep_session(
    ports: Ports,
    config: WorkerConfig,
    session: Session,
    on_messages: Callable[[Sequence[ToSession]], None],
    on_begun: Callable[[], None],
) -> None:
    """Open one session after another, and hand over what arrives, until cancelled."""
    number = 0
    while True:
        number += 1
        try:
            queue = await ports.broker.open_session(session.worker_id, number)
        except Unavailable:
            await ports.clock.sleep(config.retry_seconds)
            continue
        session.begin(number, queue)
        on_begun()
        try:
            while True:
                on_messages(await queue.take(config.batch_max))
        except Unavailable:
            pass
        finally:
            session.end()
            queue.close()
        await ports.clock.sleep(config.retry_seconds)
