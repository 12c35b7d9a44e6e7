"""What people type after `stress run`: read, or refused with the option, what was expected and an example."""

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnstile.stress import options, running
from turnstile.stress.asked import Preset
from turnstile.stress.cli import app
from turnstile.stress.mix import DurationMix
from turnstile.stress.options import Given
from turnstile.stress.stage import FaultKind

_PLAIN = Given(
    local=True,
    preset=None,
    actions=10,
    limit="4",
    executions=None,
    duration_mix=None,
    keys=0,
    submitters=4,
    rate=None,
    faults=None,
    depths=None,
    key_counts=None,
    duration="1h",
    seed=7,
    executors=2,
    workers=2,
    lease=None,
)


def _given(**changes: object) -> Given:
    values = {name: getattr(_PLAIN, name) for name in Given.__dataclass_fields__}
    return Given(**{**values, **changes})


def test_a_mix_gives_shares_and_durations() -> None:
    mix = DurationMix.parse("70% 0ms, 25% 20ms, 5% 500ms")
    assert [(round(part.share, 6), part.seconds) for part in mix.parts] == [
        (0.7, 0.0),
        (0.25, 0.02),
        (0.05, 0.5),
    ]
    assert mix.mean_seconds == pytest.approx(0.03)


def test_a_mix_is_written_as_it_is_read() -> None:
    text = "70% 0s, 25% 20ms, 5% 500ms"
    assert str(DurationMix.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("70% 0ms", "add up to 0.7"),
        ("70% 0ms, 40% 1s", "add up to 1.1"),
        ("half of them 1s", "not a share and a duration"),
        ("100% soon", "not a duration"),
        ("", "not a share and a duration"),
    ],
)
def test_a_mix_that_cannot_be_is_refused_with_an_example(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        options.read(_given(duration_mix=text))
    assert str(refused.value).startswith("--duration-mix: ")
    assert "500ms" in str(refused.value) or "250ms" in str(refused.value)


def test_options_are_read() -> None:
    asked = options.read(
        _given(preset="recovery", limit="none", depths="100,1_000", lease="2500ms", duration="10m")
    )
    assert asked.preset is Preset.RECOVERY
    assert asked.limit is None
    assert asked.depths == (100, 1000)
    assert asked.lease_seconds == 2.5
    assert asked.duration_seconds == 600.0


def test_a_smoke_run_has_a_short_lease_unless_told() -> None:
    assert options.read(_given()).lease_seconds == 15.0
    assert options.read(_given(preset="smoke")).lease_seconds == 3.0
    assert options.read(_given(preset="smoke", lease="15s")).lease_seconds == 15.0


def test_faults_are_named_as_they_are_typed() -> None:
    assert options.read(_given(faults="kill-worker, restart-broker")).faults == (
        FaultKind.KILL_WORKER,
        FaultKind.RESTART_BROKER,
    )
    assert options.read(_given(faults="all")).faults == tuple(FaultKind)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"preset": "everything"}, "--preset: 'everything' is none; expected one of smoke, limits"),
        ({"limit": "few"}, "--limit: 'few' is not a limit"),
        ({"limit": "0"}, "--limit: 0 is not between 1"),
        ({"actions": 0}, "--actions: 0 is not between 1"),
        ({"executions": 0}, "--executions: 0 is not between 1"),
        ({"submitters": 65}, "--submitters: 65 is not between 1 and 64"),
        ({"rate": 0.0}, "--rate: 0 requests per second"),
        ({"rate": float("nan")}, "--rate: nan requests per second"),
        ({"rate": float("inf")}, "--rate: inf requests per second"),
        ({"faults": "earthquake"}, "--faults: 'earthquake' is none; expected all, or some of kill-worker"),
        ({"faults": " "}, "--faults: empty"),
        ({"local": False, "faults": "all"}, "--faults: only with --local"),
        ({"local": False, "preset": "recovery"}, "only with --local"),
        ({"preset": "smoke", "faults": "all"}, "has its own"),
        ({"depths": "many"}, "--depths: 'many'; expected numbers"),
        ({"key_counts": "0"}, "--key-counts: expected numbers from 1 on"),
        ({"duration": "soon"}, "--duration: not a duration"),
        ({"lease": "0s"}, "--lease: 0 is not between 1"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_would_do(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match="--") as refused:
        options.read(_given(**changes))
    assert says in str(refused.value)


def test_an_installation_needs_both_addresses() -> None:
    place = options.installation("amqp://u:p@host/vhost", "http://one:1/, http://two:2", "token")
    assert place.http_urls == ("http://one:1", "http://two:2")
    with pytest.raises(ValueError, match="TURNSTILE_API_URL"):
        options.installation("amqp://host/", None, None)
    with pytest.raises(ValueError, match="--amqp-url: expected amqp://"):
        options.installation("http://host/", "http://host", None)
    with pytest.raises(ValueError, match="'nonsense' is not one like"):
        options.installation("amqp://host/", "nonsense", None)


@pytest.mark.parametrize(
    ("amqp_url", "api_url", "says"),
    [
        ("amqp://127.0.0.1:999999/", "http://host", "--amqp-url: host or port is wrong"),
        ("amqp://a..b/", "http://host", "--amqp-url: host or port is wrong"),
        ("amqp://a/v,amqp://b/v", "http://host", "--amqp-url: one node"),
        ("amqp://host/", "http://host:999999", "'http://host:999999' is not one like"),
        ("amqp://host/", "http://[x", "'http://[x' is not one like"),
        ("amqp://host/", "http://a..b", "'http://a..b' is not one like"),
        ("amqp://host/", ",", "TURNSTILE_API_URL"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused_with_its_option(
    amqp_url: str, api_url: str, says: str
) -> None:
    with pytest.raises(ValueError, match="--") as refused:
        options.installation(amqp_url, api_url, None)
    assert says in str(refused.value)


def test_a_folder_that_cannot_be_made_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = CliRunner().invoke(app, ["run", "--local", "--report", str(tmp_path / "file" / "report")])
    assert answer.exit_code == 2
    assert answer.output.startswith(f"--report: {tmp_path}/file/report: Not a directory")


def test_no_password_is_shown() -> None:
    place = options.installation("amqp://user:secret@host/vhost", "http://one:1", "topsecret")
    assert "secret" not in repr(place)


def test_an_installation_on_loopback_is_known_as_such() -> None:
    here = options.installation("amqp://host/", "http://127.0.0.1:1,http://localhost:2,http://[::1]:3", None)
    assert here.is_on_this_host
    there = options.installation("amqp://host/", "http://127.0.0.1:1,http://one.example:2", None)
    assert not there.is_on_this_host


def test_without_its_libraries_it_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "numpy" else found(name))
    answer = CliRunner().invoke(app, ["run", "--local"])
    assert answer.exit_code == 1
    assert "numpy missing" in answer.output
    assert "pip install 'turnstile[stress]'" in answer.output


@pytest.mark.parametrize(
    ("option", "value", "variable"),
    [
        ("--amqp-url", "amqp://u:hush@host/v", "TURNSTILE_AMQP_URL"),
        ("--api-url", "http://a:1,http://u:hush@host", "TURNSTILE_API_URL"),
    ],
)
def test_a_password_among_the_arguments_is_refused_with_its_variable(
    option: str, value: str, variable: str
) -> None:
    answer = CliRunner().invoke(app, ["run", "--local", option, value])
    assert answer.exit_code == 2
    assert f"{option}: every user of this machine can read a password" in answer.output
    assert f"set {variable} in the environment" in answer.output
    assert "hush" not in answer.output


def test_an_api_url_with_an_account_is_refused_and_not_shown() -> None:
    for url in ("http://u:hush@host", "http://hush@host", "ftp://u:hush@host"):
        with pytest.raises(ValueError, match="--api-url: ") as refused:
            options.installation("amqp://host/", url, None)
        assert "hush" not in str(refused.value)


def test_a_command_line_is_kept_without_passwords() -> None:
    kept = running.shown_command(["run", "--report", "amqp://u:hush@h/v,amqp://u:hu:sh@i/v", "--seed", "7"])
    assert kept == "turnstile stress run --report amqp://u:***@h/v,amqp://u:***@i/v --seed 7"
