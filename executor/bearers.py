"""Who may use the HTTP API: tokens, each with a name and a role.

In: `TURNSTILE_API_TOKENS` and the file `TURNSTILE_API_TOKENS_FILE`, entries `token` or `name:role:token`.
Out: for a token that somebody shows, whose it is. What is kept of a token is its digest. A file that changes
is read again, so that a token is given or taken without a restart; one that cannot be read, or names nobody,
leaves the tokens as they were: a slip must neither open the service nor lock everybody out. Next:
`executor.api.access`.
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_FORM: Final = "expected token, or name:role:token with the role read, submit or operate"


class Role(IntEnum):
    """What a bearer may do; each role includes those before it."""

    READ = 1
    """See everything, parameters and results included."""
    SUBMIT = 2
    """Submit, cancel and retry executions, one by one."""
    OPERATE = 3
    """Change everything else: actions, workers, dead letters, many executions at once."""

    @property
    def word(self) -> str:
        """How people write it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """One token that is let in."""

    name: str
    """For the record of changes; several tokens may share it while one replaces another."""
    role: Role
    digest: bytes


def read_entries(text: str) -> list[Bearer]:
    """Return the bearers in `text`: entries by commas or lines, `#` starts a line that is a remark.

    Raises ValueError, which never shows a token.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    entries = [entry.strip() for line in lines for entry in line.split(",") if entry.strip()]
    bearers = [_bearer(entry, number) for number, entry in enumerate(entries, 1)]
    for number, bearer in enumerate(bearers, 1):
        if any(other.digest == bearer.digest for other in bearers[: number - 1]):
            raise ValueError(
                f"entry {number}: its token is an earlier one's too; give each a token of its own"
            )
    return bearers


def _bearer(entry: str, number: int) -> Bearer:
    name, role, token = f"token-{number}", Role.OPERATE, entry
    if ":" in entry:
        name, _, rest = entry.partition(":")
        word, _, token = rest.partition(":")
        found = next((role for role in Role if role.word == word), None)
        # Not shown: in a token that merely holds colons, any part of it is a part of a secret.
        if found is None or not name or not token:
            raise ValueError(f"entry {number}: {_FORM}")
        role = found
    if not (token.isascii() and token.isprintable() and name.isprintable()) or " " in token:
        raise ValueError(f"entry {number}: a token is printable ASCII without spaces")
    return Bearer(name=name, role=role, digest=_digest(token.encode()))


class Bearers:
    """All who are let in now; nobody at all means that no token is asked for."""

    def __init__(self, fixed: Sequence[Bearer], file: Path | None = None) -> None:
        """Read the file; raises ValueError where that is not possible, or it names nobody."""
        self._fixed = list(fixed)
        self._file = file
        self._filed: list[Bearer] = []
        self._stamp: tuple[int, ...] | None = None
        self._look_at = time.monotonic() + _LOOK_SECONDS
        self._complaint = ""
        if file is not None:
            self._stamp, self._filed = _stamp_of(file), _read_file(file)

    @property
    def required(self) -> bool:
        """Whether a token is asked for."""
        return bool(self._fixed or self._filed)

    def bearer_of(self, token: str) -> Bearer | None:
        """Return whose token this is."""
        self._look_again()
        shown, found = _digest(token.encode()), None
        # All are compared, each in constant time: how long it takes tells nothing.
        for bearer in (*self._fixed, *self._filed):
            if hmac.compare_digest(shown, bearer.digest):
                found = bearer
        return found

    def _look_again(self) -> None:
        now = time.monotonic()
        if self._file is None or now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        try:
            stamp = _stamp_of(self._file)
            if stamp == self._stamp:
                return
            self._filed = _read_file(self._file)
        except ValueError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                logger.error("api_tokens_kept", extra={"reason": self._complaint})
            return
        self._stamp, self._complaint = stamp, ""
        names = ",".join(sorted({bearer.name for bearer in self._filed}))
        logger.info("api_tokens_read", extra={"file": str(self._file), "names": names})


def _stamp_of(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    # A mounted secret changes by a link to another file, which may be as old and as long.
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read_file(file: Path) -> list[Bearer]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file}: not text in UTF-8") from None
    try:
        bearers = read_entries(text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if not bearers:
        raise ValueError(f"{file}: no token in it; {_FORM}, one on each line")
    return bearers


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
