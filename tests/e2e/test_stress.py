"""The whole command as users run it: a private installation, all kinds of scenarios, one kill, a report.

Whole runs start servers and services of their own.
"""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnstile.stress.check.queues import occupied
from turnstile.stress.cli import app
from turnstile.stress.recording import Recording

GATED = frozenset({"units_held", "passed_in_order", "rate_kept"})


@pytest.mark.whole
@pytest.mark.timeout(400)
async def test_a_smoke_run_passes_and_leaves_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    code, output = await _stress(
        "run", "--local", "--preset", "smoke", "--seed", "11", "--report", str(folder)
    )
    assert code == 0, output
    assert output.rstrip().splitlines()[-2].startswith("PASS"), output

    document = json.loads((folder / "report.json").read_text())
    assert document["passed"]
    assert document["violations"] == 0
    metrics = {each["scenario"]["name"]: each["metrics"] for each in document["scenarios"]}
    assert all(each["executions_per_second"] > 0 for each in metrics.values())
    assert metrics["hand-over"]["hand_over"]["count"] >= 90
    assert {"no-op-limited", "no-op-unlimited", "depth-500", "keys-50"} <= metrics.keys()
    (recovery,) = metrics["recovery"]["recoveries"]
    assert recovery["kind"] == "kill worker"
    assert recovery["reclaim_seconds"] is None or recovery["lost_runs"] > 0
    # Each scenario checked the rules that apply to it.
    for scenario in document["scenarios"]:
        rules = {finding["rule"] for finding in scenario["findings"] if finding["checked"]}
        of_limits = GATED if scenario["definition_changes"] else {"limit_held", "granted_in_order"}
        assert {"limit_run", "nothing_lost", "nothing_twice", *of_limits} <= rules
    assert sum(scenario["definition_changes"] > 0 for scenario in document["scenarios"]) == 1
    assert "executions pass each gate in its order" in output
    assert "PASS Every check" in (folder / "report.txt").read_text()

    # A later check of the recordings has the same result.
    code, output = await _stress("check", str(folder))
    assert code == 0, output
    again = json.loads((folder / "report.json").read_text())
    assert again["scenarios"] == document["scenarios"]


@pytest.mark.whole
@pytest.mark.timeout(200)
async def test_the_load_with_gates_takes_every_worker_slot_and_passes(tmp_path: Path) -> None:
    code, output = await _stress(
        "run", "--local", "--preset", "gates", "--duration", "5s", "--report", str(tmp_path)
    )
    assert code == 0, output
    (folder,) = (tmp_path / "recordings").iterdir()
    recording = Recording.load(folder)
    assert recording.worker_capacity < 10
    assert occupied(recording), "no execution waited for a worker slot"


def test_a_missing_installation_is_reported_and_keeps_the_earlier_report(tmp_path: Path) -> None:
    kept = tmp_path / "report" / "recordings" / "01-load" / "tables.npz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"of an earlier run")
    urls = ["--amqp-url", "amqp://127.0.0.1:1/", "--api-url", "http://127.0.0.1:1"]
    ended = CliRunner().invoke(app, ["run", *urls, "--report", str(tmp_path / "report")])
    assert ended.exit_code == 3, ended.output
    assert "127.0.0.1:1" in ended.output
    assert kept.exists(), "a wrong URL must not delete an earlier report"


def test_a_folder_without_a_report_is_rejected_with_what_was_expected(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert ended.exit_code == 2, ended.output
    assert "turnstile stress run --report" in ended.output


async def _stress(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "turnstile.stress.cli",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode, output.decode()
