"""The programs of docs/how-to/submit-from-other-languages.md, against a real executor."""

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
from uuid import uuid4

import aio_pika
import playwright
import pytest

from tests.support.environment import Environment
from turnstile.client import AsyncClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "submit-from-other-languages.md"
_SUBMIT: Final = _PAGE.parents[1] / "submit.md"
_REF: Final = "reports.render"
_LANGUAGES: Final = ("js", "go", "java")


def _recipes(language: str) -> tuple[str, str]:
    """Return the two programs in that language: over HTTP, and over AMQP."""
    over_http, over_amqp = re.findall(
        rf"^```{language}\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert all(len(each.splitlines()) <= 13 for each in (over_http, over_amqp))
    return over_http, over_amqp


def _node(folder: Path) -> list[str]:
    (folder / "submit.mjs").write_text(_recipes("js")[0] + "console.log(JSON.stringify({ id, status }));\n")
    # The browser's driver brings its own, where the machine has none.
    return [str(Path(playwright.__file__).parent / "driver" / "node"), "submit.mjs"]


def _java(folder: Path) -> list[str]:
    if shutil.which("javac") is None:
        pytest.skip("no Java compiler on PATH")
    (folder / "Submit.java").write_text(
        "import java.net.URI;\nimport java.net.http.*;\n"
        "class Submit {\npublic static void main(String[] arguments) throws Exception {\n"
        f"{_recipes('java')[0]}System.out.println(response.body());\n}}\n}}\n"
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


def _body(program: str) -> bytes:
    (body,) = re.findall(r'\{"action_ref".*?\}\}', program)
    return str(body).encode()


async def test_what_the_programs_send_over_http_is_one_execution(env: Environment) -> None:
    await env.put(_REF, pool="nobody")
    header = re.compile(r'"(Authorization|Content-Type|Idempotency-Key)"[:,] ["`]([^"`$]*)')
    for language in _LANGUAGES:
        program, _ = _recipes(language)
        (method,) = re.findall(r'(?:method: "|NewRequest\("|\.)(POST)\b', program)
        (path,) = re.findall(r"/api/v1/\w+", program)
        headers = dict(header.findall(program))
        assert headers.keys() == {"Authorization", "Content-Type", "Idempotency-Key"}
        headers |= {"Authorization": headers["Authorization"] + "unused", "Idempotency-Key": language}
        url = f"{env.system.http_url}{path}"
        sent = [await env.http.request(method, url, content=_body(program), headers=headers) for _ in "ab"]
        assert [each.status_code for each in sent] == [202, 200]
        assert sent[0].json()["id"] == sent[1].json()["id"]
        assert (await env.get(sent[0].json()["id"]))["parameters"] == {"customer_id": 7}


async def test_what_the_programs_publish_over_the_broker_is_one_execution(env: Environment) -> None:
    ref = "published"
    await env.put(ref, pool="nobody")
    async with await aio_pika.connect(env.system.amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        for language in _LANGUAGES:
            _, program = _recipes(language)
            ((exchange, key),) = re.findall(r'"(\w+)",\s*"([\w.]+)",', program)
            assert re.search(r"persistent: true|amqp\.Persistent|deliveryMode\(2\)", program)
            assert re.search(r"waitForConfirms|WaitContext", program)
            ((name, content_type),) = re.findall(
                r'(content_?type)(?:: |\()"([\w/]+)"', program, re.IGNORECASE
            )
            assert name
            (message_id,) = re.findall(r"messageId(?:: |\()(\S+?\(\))", program, re.IGNORECASE)
            assert "UUID" in message_id or message_id == "uuid.NewString()"
            message = aio_pika.Message(
                _body(program).replace(_REF.encode(), ref.encode()),
                delivery_mode=2,
                content_type=content_type,
                message_id=str(uuid4()),
            )
            for _ in range(2):
                await (await channel.get_exchange(exchange)).publish(message, routing_key=key)
    # A request over the same queue, behind them: all have been taken when it is there.
    async with AsyncClient(amqp_url=env.system.amqp_url, http_url=env.system.http_url) as client:
        await client.submit(ref)
        found = (await client.list(action_ref=ref)).items
    assert [each.parameters for each in found] == [{}, *[{"customer_id": 7}] * len(_LANGUAGES)]


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
