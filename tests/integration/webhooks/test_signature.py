"""Signatures are those of Standard Webhooks; secrets are read strictly and never repeated."""

import pytest

from turnstile.executor.webhooks.signature import read_secrets, signed_headers

# The example of https://www.standardwebhooks.com.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EVENT = "msg_p5jXN8AQM9LWM0D4loKWxJek"
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def headers(secrets: str, *, body: bytes = BODY) -> dict[str, str]:
    return signed_headers(read_secrets(secrets), event_id=EVENT, timestamp=1614265330, body=body)


def test_the_signature_is_that_of_the_standard() -> None:
    assert headers(SECRET) == {
        "webhook-id": EVENT,
        "webhook-timestamp": "1614265330",
        "webhook-signature": SIGNATURE,
    }


def test_while_secrets_are_changed_each_of_them_signs() -> None:
    old, new = SECRET, "a-secret-in-plain-text"
    assert headers(f"{new}, {old}")["webhook-signature"].split() == [
        headers(new)["webhook-signature"],
        SIGNATURE,
    ]


def test_another_body_has_another_signature() -> None:
    assert headers(SECRET, body=BODY + b" ")["webhook-signature"] != SIGNATURE


def test_without_a_secret_nothing_is_signed() -> None:
    assert set(headers("")) == {"webhook-id", "webhook-timestamp"}


@pytest.mark.parametrize(
    "secret", ["short", "whsec_", "whsec_not base64!", "whsec_c2hvcnQ=", f"{SECRET},short"]
)
def test_a_weak_or_broken_secret_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match="openssl rand -base64 32") as refused:
        read_secrets(secret)
    assert "c2hvcnQ" not in str(refused.value)
    assert "not base64" not in str(refused.value)
