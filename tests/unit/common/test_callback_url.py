"""What can be POSTed to."""

import pytest
from pydantic import TypeAdapter, ValidationError

from turnstile.common.callback_url import CallbackUrl

ADAPTER: TypeAdapter[str] = TypeAdapter(CallbackUrl)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org", "http://example.org:8080/a?b=c#d", "HTTPS://EXAMPLE.ORG/", "http://[::1]:80/",
        "https://münchen.example/", "http://10.0.0.1/",
    ],
)  # fmt: skip
def test_a_url_with_a_host_is_kept_as_it_is(url: str) -> None:
    assert ADAPTER.validate_python(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "", "example.org", "ftp://example.org/", "file:///etc/passwd", "http://", "http:///path", "http://[::1",
        "http://a:b/", "http://a:70000/", "http://a:0/", "http://a b/", "http://a\n/", "http://a/\t", "https://\0/",
        "http://user@example.org/", "http://user:word@example.org/", "http://example.org/" + "a" * 2048,
    ],
)  # fmt: skip
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(url)


def test_the_refusal_gives_an_example_and_repeats_no_password() -> None:
    with pytest.raises(ValidationError, match=r"like 'https://example\.org/hooks/turnstile'"):
        ADAPTER.validate_python("http://")
    with pytest.raises(ValidationError) as refused:
        ADAPTER.validate_python("http://user:sesame@example.org/")
    assert "sesame" not in refused.value.errors(include_input=False)[0]["msg"]
