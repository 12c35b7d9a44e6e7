"""Passwords on their way to a server: what is derived from them travels, so no log of a server shows one.

In: a password. Out: what PostgreSQL and RabbitMQ keep of it.
"""

import hashlib
import hmac
import secrets
from base64 import b64encode
from typing import Final

_ITERATIONS: Final = 4096
_GENERATED_BYTES: Final = 24


def new_password() -> str:
    """Return a password that stands in a URL as it is."""
    return secrets.token_urlsafe(_GENERATED_BYTES)


def scram_verifier(password: str) -> str:
    """Return what PostgreSQL stores for SCRAM-SHA-256 (RFC 5803); the password is ASCII."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode("ascii"), salt, _ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    parts = [b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${_ITERATIONS}:{parts[0]}${parts[1]}:{parts[2]}"


def broker_hash(password: str) -> str:
    """Return what RabbitMQ stores: four bytes of salt, and the SHA-256 of them and the password."""
    salt = secrets.token_bytes(4)
    return b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
