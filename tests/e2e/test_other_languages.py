"""The programs of docs/how-to/submit-from-other-languages.md, against a real executor.

The programs are run as they are printed.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import playwright
import pytest

from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "submit-from-other-languages.md"
_SUBMIT: Final = _PAGE.parents[1] / "submit.md"
_REF: Final = "reports.render"


def _program(language: str) -> str:
    """Return the program in that language that submits over HTTP."""
    found = re.search(rf"^```{language}\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def _node(folder: Path) -> list[str]:
    (folder / "submit.mjs").write_text(_program("js") + "console.log(JSON.stringify({ id, status }));\n")
    # The browser's driver brings its own, where the machine has none.
    return [str(Path(playwright.__file__).parent / "driver" / "node"), "submit.mjs"]


def _java(folder: Path) -> list[str]:
    if shutil.which("javac") is None:
        pytest.skip("no Java compiler on PATH")
    (folder / "Submit.java").write_text(
        "import java.net.URI;\nimport java.net.http.*;\n"
        "class Submit {\npublic static void main(String[] arguments) throws Exception {\n"
        f"{_program('java')}System.out.println(response.body());\n}}\n}}\n"
    )
    return ["java", "Submit.java"]


@pytest.mark.parametrize("program", [_node, _java])
async def test_a_program_of_the_docs_submits_once(
    env: Environment, tmp_path: Path, program: Callable[[Path], list[str]]
) -> None:
    await env.put(_REF, pool="nobody")
    settings = {
        "TURNSTILE_API_URL": env.system.http_url,
        "TURNSTILE_API_TOKEN": "unused",
    }
    command = program(tmp_path)
    answers = []
    for _ in range(2):
        ended = await asyncio.to_thread(
            subprocess.run,
            command,
            cwd=tmp_path,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        answers.append(json.loads(ended.stdout))
    assert answers[0]["id"] == answers[1]["id"]
    execution = await env.get(answers[0]["id"])
    assert (execution["action_ref"], execution["parameters"]) == (_REF, {"customer_id": 7})
    assert execution["idempotency_key"] == "order-4711"


async def test_the_python_program_over_the_broker_submits(env: Environment, tmp_path: Path) -> None:
    await env.put(_REF, pool="nobody")
    (program,) = [
        text
        for text in re.findall(r"^```python\n(.*?)^```$", _SUBMIT.read_text(), re.MULTILINE | re.DOTALL)
        if "aio_pika" in text
    ]
    documented = "amqp://user:password@127.0.0.1:5672/turnstile"
    assert documented in program
    (tmp_path / "submit.py").write_text(program.replace(documented, env.system.amqp_url))
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "submit.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    await env.history.until(
        f"SELECT count(*) = 1 FROM ledger.execution e"
        f" WHERE e.action_ref = '{_REF}' AND e.idempotency_key IS NULL"
        " AND e.parameters = '{\"customer_id\": 7}'"
    )
