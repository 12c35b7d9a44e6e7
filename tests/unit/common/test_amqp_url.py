"""The broker's URL: of one node or of several, and a wrong one says what is expected."""

import pytest

from turnstile.common.amqp_url import amqp_urls


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("amqp://user:secret@there/orders", ["amqp://user:secret@there/orders"]),
        ("amqp://a:5672/v,amqp://b:5673/v", ["amqp://a:5672/v", "amqp://b:5673/v"]),
        ("amqps://a/v , amqps://b/v", ["amqps://a/v", "amqps://b/v"]),
        ("amqp://user:one,two@a/v,amqp://b/v", ["amqp://user:one,two@a/v", "amqp://b/v"]),
    ],
)
def test_each_node_has_a_whole_url_and_a_comma_stands_between_two(text: str, nodes: list[str]) -> None:
    assert [str(url) for url in amqp_urls(text)] == nodes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nowhere", "not a URL"),
        ("http://there/", "expected amqp://"),
        ("amqp:///no-host", "expected amqp://"),
        ("amqp://there:port/", "host or port is wrong"),
        ("amqp://there:99999/", "host or port is wrong"),
        ("amqp://a..b/", "host or port is wrong"),
        ("amqp://xn--a/", "host or port is wrong"),
        ("amqp://a:5672,b:5672/v", "amqp://user:password@a:5672/vhost,amqp://"),
        ("amqp://a,b/v", "several whole URLs"),
        ("amqp://a/v,b:5672/v", "several whole URLs"),
        ("amqp://a/v,", "several whole URLs"),
        ("amqp://a/one,amqp://b/other", "the same vhost"),
    ],
)
def test_a_wrong_url_is_refused_with_what_is_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        amqp_urls(text)


def test_a_parameter_of_the_url_comes_before_ours() -> None:
    own, ours = amqp_urls("amqp://a/v?heartbeat=7,amqp://b/v", heartbeat=2)
    assert (own.query["heartbeat"], ours.query["heartbeat"]) == ("7", "2")
