"""The API tokens in the database: created, listed, revoked, and read again every two seconds while used.

In: digests, which `ledger.api_token` stores. Out: the tokens that are valid. Each executor reads the table,
so a new token is accepted at once, and a revoked one refused within two seconds, on all of them. While the
database cannot be reached, the tokens of the last read stay valid until they expire. Before the first read it
is unknown whether a token is required, and requests are refused.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.requests import json_text
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.api_tokens import ApiToken, ApiTokens, Role, digest_of
from turnstile.executor.callers import DIRECTLY, Caller
from turnstile.executor.sql import statements

logger = logging.getLogger(__name__)

REREAD_SECONDS: Final = 2.0
_READ_TIMEOUT_SECONDS: Final = 2.0
_NEW_SECONDS: Final = 0.1
"""Least time between two reads because of unknown tokens."""
_USE_SECONDS: Final = 60.0
"""How often the last use of a token is stored."""
_RECORD_SECONDS: Final = 5.0
"""Between two tries to record a change of the token file."""
_LATE: Final = timedelta(seconds=2)
"""A change that is recorded later than this says when the executor read it."""
_FILE_CHANGES_MAX: Final = 100
"""Changes of the token file that wait to be recorded; further ones are recorded as one."""
_PREFIX: Final = "turnstile_"
"""By which scanners of source code recognise a token."""
_RANDOM_BYTES: Final = 32
_STATEMENTS: Final = statements("stored_tokens.sql")
AUDIT_LOG_RIGHTS: Final = statements("stored_tokens.sql")["audit_log_rights"]


def changeable_audit_log(rights: Mapping[str, Any], *, has_tokens: bool) -> str | None:
    """Return why the audit log proves nothing, with the remedy, from the row of `AUDIT_LOG_RIGHTS`.

    Only where callers have names: without tokens, of the settings (`has_tokens`) or in the database, as on a
    developer's machine, the rows prove nothing about anybody.
    """
    if not (rights.get("may_change") and (has_tokens or rights["has_tokens"])):
        return None
    return (
        f"the database role {rights['role']!r} of this executor may change and delete rows of the audit log; "
        "run 'executor setup-permissions', and start the executor with the account in its executor.env"
    )


def new_token() -> str:
    """Return a random token."""
    return _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A change of the token file, as it is recorded."""

    before: Sequence[ApiToken]
    after: Sequence[ApiToken]
    read_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class TokenStore:
    """The stored tokens. Safe to share between tasks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, name: str, role: Role, scope: Sequence[str] | None, *, seconds: float | None, changed_by: Caller
    ) -> tuple[int, str]:
        """Create a token that is valid for `seconds`, None: for ever; return its id and the token."""
        token = new_token()
        token_id: int = await self._database.fetchval(
            _STATEMENTS["create"], *changed_by, name, role.word, scope, digest_of(token), seconds
        )
        return token_id, token

    async def revoke(self, token_id: int, changed_by: Caller) -> bool:
        """Revoke a token; False: there is no such token."""
        return bool(await self._database.fetchval(_STATEMENTS["revoke"], *changed_by, token_id))

    async def page(
        self, *, before_id: int, limit: int, token_id: int | None = None
    ) -> Sequence[asyncpg.Record]:
        """Return tokens without their digests, newest first."""
        return await self._database.fetch(_STATEMENTS["page"], before_id, token_id, limit)

    async def valid(self) -> Sequence[asyncpg.Record]:
        """Return the valid tokens with their digests, or one row of nulls; each says whether any exists."""
        return await self._database.fetch(_STATEMENTS["valid"])

    async def log_file_change(self, change: FileChange) -> None:
        """Record in the audit log that the token file of this executor was changed."""
        old, new = ({token.digest for token in tokens} for tokens in (change.before, change.after))
        counts = {"added": len(new - old), "removed": len(old - new)}
        # The row has the time at which it is written.
        is_late = datetime.now(UTC) - change.read_at > _LATE
        late = {"read_at": change.read_at.isoformat()} if is_late else {}
        await self._database.fetch(
            _STATEMENTS["note_file_change"],
            *DIRECTLY,
            socket.gethostname(),
            json_text({"tokens": _entries(change.before)}),
            json_text({"tokens": _entries(change.after), **counts, **late}),
        )

    async def note_use(self, token_id: int) -> None:
        """Store that a token was used now."""
        await self._database.fetch(_STATEMENTS["note_use"], token_id)


class AcceptedTokens:
    """All tokens that are accepted: those of the settings and those in the database."""

    def __init__(
        self,
        fixed: ApiTokens,
        store: TokenStore,
        *,
        always_required: bool = False,
        reread_seconds: float | None = None,
    ) -> None:
        """`always_required`: reject requests without a token also while there is none."""
        fixed.on_change = self._log_file_change
        self._fixed = fixed
        self._store = store
        self._always_required = always_required
        self._reread_seconds = REREAD_SECONDS if reread_seconds is None else reread_seconds
        self._kept = Episodes(logger, "api_tokens_kept", lasting=True)
        self._not_recorded = Episodes(logger, "token_file_change_not_recorded")
        self._file_changes: deque[FileChange] = deque()
        """Not recorded yet, the oldest first."""
        self._recording: asyncio.Task[None] | None = None
        self._any_stored: bool | None = None
        """None: not read yet."""
        self._unread_reason = "database: the API tokens have not been read yet"
        """Why, as long as they are not read."""
        self._stored: dict[bytes, tuple[ApiToken, float]] = {}
        """With the instants, of the monotonic clock, at which they expire."""
        self._read_at = 0.0
        self._reading = asyncio.Lock()
        self._reads = 0
        self._used_at: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(self, token: str) -> ApiToken | None:
        """Return the entry of a token, or None. Raises Unavailable if that is not known yet."""
        # First: these need no database.
        found = self._fixed.find(token)
        if found is not None:
            return found
        arrived_at, digest = time.monotonic(), digest_of(token)
        await self._reread()
        if digest not in self._stored and self._any_stored is not None:
            # It may be new. However many wrong tokens arrive, they cost a few statements a second.
            while self._read_at < arrived_at:
                await asyncio.sleep(max(0.0, self._read_at + _NEW_SECONDS - time.monotonic()))
                await self._reread(_NEW_SECONDS)
        if self._any_stored is None:
            raise Unavailable(self._unread_reason)
        # Found by its digest: how long that takes says nothing about another token.
        stored, expires_at = self._stored.get(digest, (None, 0.0))
        if stored is None or expires_at <= time.monotonic():
            return None
        self._note_use(stored)
        return stored

    async def required(self) -> bool:
        """Return whether a token is required. Raises Unavailable if that is not known yet."""
        if self._always_required or self._fixed.required:
            return True
        await self._reread()
        if self._any_stored is None:
            raise Unavailable(self._unread_reason)
        return self._any_stored

    async def until_refused(self, token: ApiToken | None) -> None:
        """Return when this token, or access without one, is not accepted any more."""
        never = asyncio.Event()
        while await self._is_accepted(token):
            with suppress(TimeoutError):
                await asyncio.wait_for(never.wait(), self._reread_seconds)

    async def _is_accepted(self, token: ApiToken | None) -> bool:
        if token is None:
            return not await self.required()
        if token.id is None:
            return self._fixed.has(token.digest)
        await self._reread()
        known, expires_at = self._stored.get(token.digest, (None, 0.0))
        return known is not None and expires_at > time.monotonic()

    def _is_recent(self, age_max_seconds: float) -> bool:
        return self._any_stored is not None and time.monotonic() < self._read_at + age_max_seconds

    async def _reread(self, age_max_seconds: float | None = None) -> None:
        age = self._reread_seconds if age_max_seconds is None else age_max_seconds
        if self._is_recent(age):
            return
        reads = self._reads
        async with self._reading:
            # One read is for all that waited for it, also if it failed: a hanging database delays them once.
            if self._reads == reads:
                await self._read()
                self._reads += 1

    async def _read(self) -> None:
        # Before the statement: what is revoked meanwhile is read again in time.
        began_at = time.monotonic()
        try:
            async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
                rows = await self._store.valid()
        except (Unavailable, TimeoutError, asyncpg.PostgresError) as error:
            reason = _reason(error)
            if self._any_stored is None:
                self._unread_reason = reason
            else:
                self._kept.failed("database", reason=reason)
                self._read_at = time.monotonic()
            return
        self._kept.works("database")
        self._any_stored = rows[0]["exists"]
        self._stored = {row["digest"]: _entry(row, began_at) for row in rows if row["id"] is not None}
        self._read_at = began_at

    def _note_use(self, token: ApiToken) -> None:
        assert token.id is not None
        now = time.monotonic()
        if now < self._used_at.get(token.id, -_USE_SECONDS) + _USE_SECONDS:
            return
        self._used_at[token.id] = now
        self._start(self._store_use(token.id), name="token-use")

    def _start(self, work: Coroutine[None, None, None], *, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _log_file_change(self, before: Sequence[ApiToken], after: Sequence[ApiToken]) -> None:
        if len(self._file_changes) < _FILE_CHANGES_MAX:
            self._file_changes.append(FileChange(before=before, after=after))
        else:
            self._file_changes[-1] = replace(self._file_changes[-1], after=after)
        if self._recording is None or self._recording.done():
            self._recording = self._start(self._record_file_changes(), name="token-file-changes")

    async def _record_file_changes(self) -> None:
        """Record the changes in their order once the database takes them; they are in force already."""
        while self._file_changes:
            try:
                await self._store.log_file_change(self._file_changes[0])
            except (Unavailable, asyncpg.PostgresError) as error:
                self._not_recorded.failed("token file", reason=str(error))
                await asyncio.sleep(_RECORD_SECONDS)
            else:
                self._file_changes.popleft()
                self._not_recorded.works("token file")

    async def _store_use(self, token_id: int) -> None:
        try:
            await self._store.note_use(token_id)
        except (Unavailable, asyncpg.PostgresError) as error:
            logger.debug("token_use_not_stored", extra={"reason": str(error)})


def _entries(tokens: Sequence[ApiToken]) -> list[str]:
    """Return name and role of each token."""
    return sorted(f"{token.name}:{token.role.word}" for token in tokens)


def _reason(error: Exception) -> str:
    match error:
        case Unavailable():
            return str(error)
        case TimeoutError():
            return f"database: the API tokens were not read within {_READ_TIMEOUT_SECONDS:g} s"
        case _:
            return f"database: the API tokens cannot be read: {error}"


def _entry(row: Any, read_at: float) -> tuple[ApiToken, float]:
    scope = None if row["scope"] is None else tuple(row["scope"])
    role = Role[row["role"].upper()]
    token = ApiToken(name=row["name"], role=role, digest=row["digest"], id=row["id"], scope=scope)
    seconds_left = row["seconds_left"]
    return token, float("inf") if seconds_left is None else read_at + seconds_left
