"""The options of `stress run`: parsed, or rejected with the option, what was expected and an example."""

import importlib.util
import inspect
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnstile.stress.cli import app, run_command
from turnstile.stress.config import Preset, RunConfig, installation_at, read_config
from turnstile.stress.run import shown_command
from turnstile.stress.scenario import DurationMix, FaultKind

_DEFAULTS = {name: each.default for name, each in inspect.signature(run_command).parameters.items()}


def read(**changes: object) -> RunConfig:
    return read_config({**_DEFAULTS, "local": True, **changes})


def test_a_mix_gives_shares_and_durations_and_is_written_as_it_is_read() -> None:
    text = "70% 0s, 25% 20ms, 5% 500ms"
    mix = DurationMix.parse(text)
    assert [(round(part.share, 6), part.seconds) for part in mix.parts] == [
        (0.7, 0.0),
        (0.25, 0.02),
        (0.05, 0.5),
    ]
    assert mix.mean_seconds == pytest.approx(0.03)
    assert str(mix) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("70% 0ms", "add up to 0.7"),
        ("70% 0ms, 40% 1s", "add up to 1.1"),
        ("half of them 1s", "not a share and a duration"),
        ("100% soon", "not a duration"),
        ("", "not a share and a duration"),
    ],
)
def test_an_invalid_mix_is_rejected_with_an_example(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as rejected:
        read(duration_mix=text)
    assert str(rejected.value).startswith("--duration-mix: ")
    assert "500ms" in str(rejected.value) or "250ms" in str(rejected.value)


def test_options_are_parsed() -> None:
    config = read(preset="recovery", limit="none", lease="2500ms", duration="10m")
    assert (config.preset, config.limit) == (Preset.RECOVERY, None)
    assert (config.lease_seconds, config.duration_seconds) == (2.5, 600.0)
    assert read(faults="kill-worker, restart-broker").faults == (
        FaultKind.KILL_WORKER,
        FaultKind.RESTART_BROKER,
    )
    assert read(faults="all").faults == tuple(FaultKind)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "everything"}, "--preset: 'everything': expected 'smoke', 'recovery'"),
        ({"limit": "few"}, "--limit: 'few': expected a whole number"),
        ({"submitters": 65}, "--submitters: '65': expected 64 or less"),
        ({"rate": 0.0}, "--rate: '0.0': expected more than 0"),
        ({"rate": float("inf")}, "--rate: 'inf': expected"),
        (
            {"faults": "earthquake"},
            "--faults: 'earthquake': 'earthquake' is unknown; expected all, or some of kill-worker",
        ),
        ({"local": False, "faults": "all"}, "--faults: only with --local"),
        ({"local": False, "preset": "recovery"}, "only with --local"),
        ({"preset": "smoke", "faults": "all"}, "has its own"),
        ({"duration": "soon"}, "--duration: 'soon': not a duration"),
        ({"lease": "0s"}, "--lease: '0s': expected "),
    ],
)
def test_an_invalid_option_is_rejected_with_what_was_expected(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match="--") as rejected:
        read(**changes)
    assert message in str(rejected.value)


def test_an_installation_has_both_urls_and_shows_no_secret() -> None:
    found = installation_at("amqp://user:secret@host/vhost", "http://one:1/, http://two:2", "topsecret")
    assert found.http_urls == ("http://one:1", "http://two:2")
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("amqp_url", "api_url", "message"),
    [
        ("amqp://host/", None, "TURNSTILE_API_URL"),
        ("amqp://host/", ",", "TURNSTILE_API_URL"),
        ("http://host/", "http://host", "--amqp-url: expected amqp://"),
        ("amqp://a/v,amqp://b/v", "http://host", "--amqp-url: expected one URL"),
        ("amqp://host/", "nonsense", "--api-url: invalid URL"),
        ("amqp://host/", "http://a..b", "--api-url: invalid URL"),
        ("amqp://host/", "http://u:hush@host", "--api-url: "),
    ],
)
def test_an_invalid_url_is_rejected_with_its_option_and_without_an_account(
    amqp_url: str, api_url: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match="--") as rejected:
        installation_at(amqp_url, api_url, None)
    assert message in str(rejected.value)
    assert "hush" not in str(rejected.value)


def test_an_installation_on_loopback_is_recognized() -> None:
    for urls, is_here in (
        ("http://127.0.0.1:1,http://localhost:2,http://[::1]:3", True),
        ("http://127.0.0.1:1,http://one.example:2", False),
    ):
        assert installation_at("amqp://host/", urls, None).is_on_this_host is is_here


def test_a_folder_that_cannot_be_created_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = CliRunner().invoke(app, ["run", "--local", "--report", str(tmp_path / "file" / "report")])
    assert answer.exit_code == 2
    assert answer.output.startswith(f"--report: {tmp_path}/file/report: Not a directory")


def test_missing_libraries_are_reported_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "numpy" else found(name))
    answer = CliRunner().invoke(app, ["run", "--local"])
    assert answer.exit_code == 2
    assert "pip install 'turnstile-scheduler[stress]' (numpy is missing)" in answer.output


@pytest.mark.parametrize(
    ("option", "value", "variable"),
    [
        ("--amqp-url", "amqp://u:hush@host/v", "TURNSTILE_AMQP_URL"),
        ("--api-url", "http://a:1,http://u:hush@host", "TURNSTILE_API_URL"),
    ],
)
def test_a_password_in_an_option_is_rejected_with_its_variable(
    option: str, value: str, variable: str
) -> None:
    answer = CliRunner().invoke(app, ["run", "--local", option, value])
    assert answer.exit_code == 2
    assert f"{option}: every user of this machine can read a password" in answer.output
    assert f"set {variable} in the environment" in answer.output
    assert "hush" not in answer.output


def test_the_command_line_in_the_report_has_no_passwords() -> None:
    shown = shown_command(["run", "--report", "amqp://u:hush@h/v,amqp://u:hu:sh@i/v", "--seed", "7"])
    assert shown == "turnstile stress run --report amqp://u:***@h/v,amqp://u:***@i/v --seed 7"
