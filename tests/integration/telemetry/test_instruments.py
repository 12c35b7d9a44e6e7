"""Counting is exact, labels are bounded, and traces that are off cost no import."""

import subprocess
import sys

import pytest

from tests.integration.telemetry.conftest import samples_in
from turnstile.common.cli import CommandFailed
from turnstile.common.telemetry import tracing
from turnstile.common.telemetry.metrics import ACTION_REFS_MAX, BUCKETS_SECONDS, OTHER, Meter, exposed


def scraped(meter: Meter) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return samples_in(exposed(meter, "text/plain")[0].decode())


def test_actions_beyond_the_bound_share_one_name_and_those_before_keep_theirs() -> None:
    meter = Meter()
    counter = meter.counter("turnstile_done_total", "Done.", "action_ref")
    for number in range(ACTION_REFS_MAX + 50):
        counter.add(meter.action_refs[f"action-{number}"])
    counter.add(meter.action_refs["action-0"])
    assert len(counter.values) == ACTION_REFS_MAX + 1
    assert counter.values[(OTHER,)] == 50
    assert counter.values[("action-0",)] == 2


def test_a_bucket_counts_durations_up_to_its_bound() -> None:
    meter = Meter()
    histogram = meter.histogram("turnstile_took_seconds", "Took.")
    for seconds, count in ((-1.0, 1), (0.001, 1), (0.0011, 2), (BUCKETS_SECONDS[-1] + 1, 1)):
        histogram.observe(seconds, count=count)
    found = scraped(meter)
    at_most = {
        bound: found["turnstile_took_seconds_bucket", frozenset({("le", bound)})]
        for bound in ("0.001", "0.0025", str(BUCKETS_SECONDS[-1]), "+Inf")
    }
    assert at_most == {"0.001": 2, "0.0025": 4, str(BUCKETS_SECONDS[-1]): 4, "+Inf": 5}
    assert found["turnstile_took_seconds_count", frozenset()] == 5
    assert found["turnstile_took_seconds_sum", frozenset()] == pytest.approx(7201.0032)


def test_a_counter_with_known_labels_is_zero_from_the_start() -> None:
    meter = Meter()
    meter.counter("turnstile_done_total", "Done.", "status", known=("good", "bad"))
    assert scraped(meter)["turnstile_done_total", frozenset({("status", "bad")})] == 0


def test_a_label_with_quotes_and_newlines_is_exposed_unchanged() -> None:
    meter = Meter()
    strange = 'a "b"\\\n{c="d"}'
    meter.counter("turnstile_done_total", "Done.", "action_ref").add(strange)
    assert scraped(meter)["turnstile_done_total", frozenset({("action_ref", strange)})] == 1


def test_a_gauge_without_a_value_is_left_out() -> None:
    meter = Meter()
    meter.gauge("turnstile_age_seconds", "Age.").read_from(lambda: None)
    assert not [name for name, _ in scraped(meter) if name == "turnstile_age_seconds"]


def test_the_exporter_is_not_imported_while_traces_are_off() -> None:
    code = (
        "import sys, turnstile.executor.service, turnstile.worker.service, turnstile.client\n"
        "from turnstile.common.telemetry.tracing import active, configure_tracing\n"
        "configure_tracing(service='any', endpoint=None)\n"
        "assert active() is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout == "[]\n"


def test_traces_without_their_packages_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.delitem(sys.modules, "turnstile.common.telemetry.spans", raising=False)
    for name in [name for name in sys.modules if name.startswith("opentelemetry.sdk.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        CommandFailed, match=r"TURNSTILE_OTLP_ENDPOINT: .* pip install 'turnstile-scheduler\[otel\]'"
    ):
        tracing.configure_tracing(service="any", endpoint="http://127.0.0.1:4318")


@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none"])
def test_the_standard_variables_keep_traces_off(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable.split("="))
    tracing.configure_tracing(service="any", endpoint="http://127.0.0.1:4318")
    assert tracing.active() is None
