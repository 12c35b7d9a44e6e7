"""A worker that cannot reach a server says which one and why."""

import httpx

from turnstile.worker.health import health_app


async def test_readyz_names_the_server_that_cannot_be_reached() -> None:
    parts: dict[str, str | None] = {"database": None, "broker": "connection refused"}
    transport = httpx.ASGITransport(app=health_app(lambda: parts))
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as http:
        answer = await http.get("/readyz")
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.status_code, answer.json()["detail"]) == (503, "broker: connection refused")
        assert (await http.get("/livez")).status_code == 200
        parts["broker"] = None
        assert (await http.get("/readyz")).json() == {"status": "ready", "parts": parts}
