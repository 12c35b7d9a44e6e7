"""The API tokens that the service accepts: from a setting and from a file, each with a role.

In: `TURNSTILE_API_TOKENS` and the file `TURNSTILE_API_TOKENS_FILE`, entries `token` or `name:role:token`.
Out: the entry of a token. Only digests of tokens are stored. A changed file is reloaded without a restart; a
file that cannot be read, or has no entry, changes nothing: an error in it must neither open the service nor
reject all callers.
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from turnstile.common.telemetry.logs import Episodes

logger = logging.getLogger(__name__)

_REREAD_SECONDS: Final = 1.0
_FORM: Final = "expected token, or name:role:token with the role read, submit, operate or admin"


class Role(IntEnum):
    """What a token permits; each role includes the previous ones."""

    READ = 1
    """Read everything, parameters and results included."""
    SUBMIT = 2
    """Submit, cancel and retry executions, one by one."""
    OPERATE = 3
    """Change everything else: actions, workers, dead letters, many executions at once."""
    ADMIN = 4
    """Create and revoke tokens."""

    @property
    def word(self) -> str:
        """The role as it is written in an entry."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken:
    """One accepted token."""

    name: str
    """For the history of changes; several tokens may share it while one replaces another."""
    role: Role
    digest: bytes
    id: int | None = None
    """Of a token in the database; None: from a setting."""
    scope: tuple[str, ...] | None = None
    """Prefixes of the actions that it may use; None: all."""

    def may_use(self, action_ref: str) -> bool:
        """Return whether an action is in the scope."""
        return is_in_scope(action_ref, self.scope)


def is_in_scope(action_ref: str, scope: Sequence[str] | None) -> bool:
    """Return whether the name of an action begins with one of these prefixes; None: any action."""
    return scope is None or action_ref.startswith(tuple(scope))


def digest_of(token: str) -> bytes:
    """Return what is stored of a token."""
    return hashlib.sha256(token.encode()).digest()


def read_entries(text: str) -> list[ApiToken]:
    """Return the tokens in `text`: entries separated by commas or lines; `#` starts a comment line.

    Raises ValueError, which never contains a token.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    entries = [entry.strip() for line in lines for entry in line.split(",") if entry.strip()]
    tokens = [_token(entry, number) for number, entry in enumerate(entries, 1)]
    for number, token in enumerate(tokens, 1):
        if any(earlier.digest == token.digest for earlier in tokens[: number - 1]):
            raise ValueError(f"entry {number}: an earlier entry has the same token; give each entry its own")
    return tokens


def _token(entry: str, number: int) -> ApiToken:
    name, role, token = f"token-{number}", Role.OPERATE, entry
    if ":" in entry:
        name, _, rest = entry.partition(":")
        word, _, token = rest.partition(":")
        found = next((role for role in Role if role.word == word), None)
        # Not shown: if the token itself contains colons, any part of the entry is secret.
        if found is None or not name or not token:
            raise ValueError(f"entry {number}: {_FORM}")
        role = found
    if not (token.isascii() and token.isprintable() and name.isprintable()) or " " in token:
        raise ValueError(f"entry {number}: a token is printable ASCII without spaces")
    return ApiToken(name=name, role=role, digest=digest_of(token))


class ApiTokens:
    """All accepted tokens. Without any, no token is required."""

    def __init__(self, fixed: Sequence[ApiToken], file: Path | None = None) -> None:
        """Read the file; raises ValueError if it cannot be read or has no entry."""
        self.on_change: Callable[[Sequence[ApiToken], Sequence[ApiToken]], None] = lambda *_: None
        """Called with the tokens of the file before and after a change."""
        self._fixed = list(fixed)
        self._file = file
        self._from_file: list[ApiToken] = []
        self._stamp: tuple[int, ...] | None = None
        self._read_at = time.monotonic() + _REREAD_SECONDS
        self._kept = Episodes(logger, "api_tokens_kept", level=logging.ERROR, lasting=True)
        if file is not None:
            self._stamp, self._from_file = _stamp_of(file), _read_file(file)

    @property
    def required(self) -> bool:
        """Whether a token is required."""
        return bool(self._fixed or self._from_file)

    def find(self, token: str) -> ApiToken | None:
        """Return the entry of `token`, or None."""
        self._reread()
        digest, found = digest_of(token), None
        # All are compared, each in constant time: the duration reveals nothing.
        for known in (*self._fixed, *self._from_file):
            if hmac.compare_digest(digest, known.digest):
                found = known
        return found

    def has(self, digest: bytes) -> bool:
        """Return whether the token with this digest is accepted."""
        self._reread()
        return any(hmac.compare_digest(digest, known.digest) for known in (*self._fixed, *self._from_file))

    def _reread(self) -> None:
        now = time.monotonic()
        if self._file is None or now < self._read_at:
            return
        self._read_at = now + _REREAD_SECONDS
        try:
            stamp = _stamp_of(self._file)
            if stamp == self._stamp:
                # After an error too: the restored file may equal the one that was read last.
                self._kept.all_work(file=str(self._file))
                return
            before, self._from_file = self._from_file, _read_file(self._file)
        except ValueError as error:
            self._kept.failed(str(error), reason=str(error))
            return
        self._stamp = stamp
        self._kept.all_work(file=str(self._file))
        names = ",".join(sorted({token.name for token in self._from_file}))
        logger.info("api_tokens_read", extra={"file": str(self._file), "names": names})
        if {token.digest for token in before} != {token.digest for token in self._from_file}:
            self.on_change(before, self._from_file)


def _stamp_of(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    # A mounted secret changes by a link to another file, which may have the same time and size.
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read_file(file: Path) -> list[ApiToken]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file}: not text in UTF-8") from None
    try:
        tokens = read_entries(text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if not tokens:
        raise ValueError(f"{file}: no token in it; {_FORM}, one on each line")
    return tokens
