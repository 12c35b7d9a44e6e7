"""The whole command as its users run it: a private installation, all kinds of stages, one kill, a report."""

import asyncio
import json
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(400)
async def test_a_smoke_run_keeps_every_promise_and_leaves_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    code, output = await _stress(
        "run", "--local", "--preset", "smoke", "--seed", "11", "--report", str(folder)
    )
    assert code == 0, output
    assert output.rstrip().splitlines()[-2].startswith("KEPT"), output

    document = json.loads((folder / "report.json").read_text())
    assert document["kept"]
    assert document["violations"] == 0
    five = document["five_figures"]
    assert five["per_second_limited"] > 0
    assert five["per_second_unlimited"] > 0
    assert five["hand_over"]["count"] >= 90
    assert len(five["by_depth"]) == len(five["by_keys"]) == 1
    (recovery,) = five["recoveries"]
    assert recovery["kind"] == "kill worker"
    assert recovery["reclaim_seconds"] is None or recovery["lost_runs"] > 0
    # Of each stage something was asked of every rule that it can say anything about.
    for stage in document["stages"]:
        asked = {finding["rule"] for finding in stage["findings"] if finding["looked_at"]}
        assert {"limit_held", "limit_run", "granted_in_order", "nothing_lost", "nothing_twice"} <= asked
    page = (folder / "report.html").read_text()
    assert page.count("<img") >= len(document["stages"])
    assert list((folder / "pictures").glob("recovery-fault-*.png"))

    # The recordings say the same to whoever judges them later.
    code, output = await _stress("check", str(folder))
    assert code == 0, output
    again = json.loads((folder / "report.json").read_text())
    assert again["five_figures"] == five


async def test_an_installation_that_is_not_there_is_said_to_be_unreachable_and_costs_nothing(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "report" / "recordings" / "01-load" / "tables.npz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"of an earlier run")
    code, output = await _stress(
        "run",
        "--amqp-url",
        "amqp://127.0.0.1:1/",
        "--api-url",
        "http://127.0.0.1:1",
        "--report",
        str(tmp_path / "report"),
    )
    assert code == 3, output
    assert "127.0.0.1:1" in output
    assert "Traceback" not in output
    assert kept.exists(), "a mistyped address throws nothing away"


async def test_a_folder_without_a_report_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    code, output = await _stress("check", str(tmp_path))
    assert code == 2, output
    assert "turnstile stress run --report" in output


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
