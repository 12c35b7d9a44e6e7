"""Signs what is POSTed, so that a receiver knows who sent it and when.

In: the event's id, the instant of this attempt, the body. Out: the headers of Standard Webhooks
(https://www.standardwebhooks.com): HMAC-SHA256 over `id.timestamp.body`, once with each secret, so that one
can replace another without a gap. The instant is that of the attempt: a receiver refuses what is minutes old.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

_PREFIX: Final = "whsec_"
_BYTES_MIN: Final = 16


def read_secrets(text: str) -> list[bytes]:
    """Return the keys in `text`; raises ValueError, which repeats nothing of them."""
    return [_read(secret.strip()) for secret in text.split(",") if secret.strip()]


def signed_headers(secrets: Sequence[bytes], *, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that name and sign this attempt; without a secret there is no signature."""
    headers = {"webhook-id": event_id, "webhook-timestamp": str(timestamp)}
    if secrets:
        content = f"{event_id}.{timestamp}.".encode() + body
        headers["webhook-signature"] = " ".join(_signature(secret, content) for secret in secrets)
    return headers


def _signature(secret: bytes, content: bytes) -> str:
    return "v1," + base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()


def _read(secret: str) -> bytes:
    if not secret.startswith(_PREFIX):
        key = secret.encode()
    else:
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            raise ValueError(
                "after whsec_ comes base64, like the output of: openssl rand -base64 32"
            ) from None
    if len(key) < _BYTES_MIN:
        raise ValueError(
            f"a secret of {len(key)} bytes; expected at least {_BYTES_MIN}, like whsec_ and the output of: "
            "openssl rand -base64 32"
        )
    return key
