"""deploy/kubernetes: valid by the schemas of the API, and its commands, settings and ports exist."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from starlette.routing import Route
from typer.testing import CliRunner

from turnstile.common.domain.durations import parse_duration
from turnstile.executor.api.ops import health_routes
from turnstile.executor.api_tokens import Role, digest_of, read_entries
from turnstile.executor.queries.schemas import StoredPool
from turnstile.worker.actions import RegisteredAction, load_actions
from turnstile.worker.health import health_app

ROOT = Path(__file__).parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"
KUSTOMIZATIONS = ("base", "migrate", "keda")
SECRETS = KUBERNETES / "secrets.example.yaml"

Document = dict[str, Any]


@cache
def read(path: Path) -> list[Document]:
    """Return the documents of a file; callers must not change them."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def kustomization(folder: str) -> Document:
    """Return the kustomization of a folder."""
    (document,) = read(KUBERNETES / folder / "kustomization.yaml")
    return document


def resources() -> Iterator[Document]:
    """Yield every document that a kustomization lists."""
    for folder in KUSTOMIZATIONS:
        for name in kustomization(folder)["resources"]:
            if name.endswith(".yaml"):
                yield from read(KUBERNETES / folder / name)


def of_kind(kind: str) -> dict[str, Document]:
    """Return all of a kind, by name."""
    return {d["metadata"]["name"]: d for d in resources() if d["kind"] == kind}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The pod of a Deployment or a Job."""

    name: str
    labels: dict[str, str]
    spec: Document

    @property
    def container(self) -> Document:
        """Its one container."""
        (container,) = self.spec["containers"]
        return dict(container)

    @property
    def environment(self) -> dict[str, str | None]:
        """Its variables; None for a value from elsewhere."""
        return {entry["name"]: entry.get("value") for entry in self.container["env"]}

    @property
    def ports(self) -> dict[str, int]:
        """Its ports by name."""
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", [])}

    @property
    def probes(self) -> dict[str, Document]:
        """Its probes by name."""
        return {name: probe for name, probe in self.container.items() if name.endswith("Probe")}


def pods() -> dict[str, Pod]:
    """Return every pod by the name of its Deployment or Job."""
    made = {**of_kind("Deployment"), **of_kind("Job")}
    return {
        name: Pod(
            name=name,
            labels=document["spec"]["template"]["metadata"]["labels"],
            spec=document["spec"]["template"]["spec"],
        )
        for name, document in made.items()
    }


def actions_of_the_base(monkeypatch: pytest.MonkeyPatch) -> list[RegisteredAction]:
    """Load the actions of the base's workers."""
    monkeypatch.syspath_prepend(KUBERNETES / "base" / "actions")
    return load_actions("hello")


VERSIONS = ("1.30", "1.37")
"""The oldest and the newest supported version."""
OURS = [document for document in resources() if "keda.sh" not in document["apiVersion"]]
SERVICES = ("turnstile-executor", "turnstile-worker")

every_pod = pytest.mark.parametrize("pod", pods().values(), ids=lambda pod: pod.name)
every_service = pytest.mark.parametrize("pod", [pods()[name] for name in SERVICES], ids=SERVICES)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_is_valid_without_unknown_fields(version: str) -> None:
    for document in [*OURS, *read(SECRETS)]:
        kubernetes_validate.validate(document, version, strict=True)


@every_pod
def test_every_command_is_accepted_with_its_settings(pod: Pod) -> None:
    settings = {*pod.environment, *_from_elsewhere(pod)}
    program, *arguments = pod.container["command"]
    # A worker needs the broker and nothing else.
    assert ("TURNSTILE_DATABASE_URL" in settings) == (program == "executor")
    app = import_module(f"turnstile.{program}.cli").app
    # --help at its end stops it before it acts.
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "400", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    assert [name for name in settings if name not in result.output] == []


def test_a_worker_may_ask_the_executors_with_a_token_of_its_own() -> None:
    secrets = {secret["metadata"]["name"]: secret["stringData"] for secret in read(SECRETS)}
    tokens = read_entries(secrets["turnstile-executor"]["TURNSTILE_API_TOKENS"])
    digest = digest_of(secrets["turnstile-worker"]["TURNSTILE_API_TOKEN"])
    assert [(each.name, each.role) for each in tokens if each.digest == digest] == [("worker", Role.READ)]
    url = urlsplit(pods()["turnstile-worker"].environment["TURNSTILE_API_URL"] or "")
    service = of_kind("Service")[url.hostname or ""]["spec"]
    assert url.port in {port["port"] for port in service["ports"]}
    # Without the broker no executor is ready, and that is when a worker asks.
    assert service["publishNotReadyAddresses"] is True


@every_service
def test_every_probe_uses_a_route_and_a_port_of_its_service(pod: Pod) -> None:
    routes = _routes()[pod.container["name"]]
    setting = {"http": "TURNSTILE_HTTP", "health": "TURNSTILE_WORKER_HTTP"}
    assert set(pod.probes) == {"startupProbe", "readinessProbe", "livenessProbe"}
    for probe in pod.probes.values():
        request = probe["httpGet"]
        assert request["path"] in routes
        assert pod.environment[f"{setting[request['port']]}_PORT"] == str(pod.ports[request["port"]])
        assert pod.environment[f"{setting[request['port']]}_HOST"] == "0.0.0.0"
    assert pod.probes["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert pod.probes["livenessProbe"]["httpGet"]["path"] == "/livez"


@every_service
def test_a_pod_is_killed_only_after_its_drain_timeout(pod: Pod) -> None:
    drain_seconds = parse_duration(pod.environment["TURNSTILE_DRAIN_TIMEOUT"] or "")
    before_seconds = float(
        pod.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0, 0])[1]
    )
    if pod.container["name"] == "executor":
        # HTTP, then the listeners, then the database.
        needed_seconds = before_seconds + 2 * drain_seconds + 5.0
    else:
        needed_seconds = drain_seconds + parse_duration(pod.environment["TURNSTILE_STOP_GRACE"] or "") + 15.0
    assert pod.spec["terminationGracePeriodSeconds"] > needed_seconds


@every_service
def test_every_selector_matches_its_pods(pod: Pod) -> None:
    selectors = (
        ("Deployment", "selector"),
        ("PodDisruptionBudget", "selector"),
        ("NetworkPolicy", "podSelector"),
    )
    for kind, selector in selectors:
        selected = of_kind(kind)[pod.name]["spec"][selector]["matchLabels"]
        assert selected.items() <= pod.labels.items()
    spreads = pod.spec["topologySpreadConstraints"]
    assert all(s["labelSelector"]["matchLabels"].items() <= pod.labels.items() for s in spreads)


def test_ports_of_services_and_policies_exist_in_the_pods() -> None:
    executor = pods()["turnstile-executor"]
    for service in (each["spec"] for each in of_kind("Service").values()):
        assert service["selector"].items() <= executor.labels.items()
        assert {port["targetPort"] for port in service["ports"]} <= executor.ports.keys()
    for name, policy in of_kind("NetworkPolicy").items():
        allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert allowed == pods()[name].ports.keys()


def test_the_image_is_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for folder in ("base", "migrate"):
        assert kustomization(folder)["images"] == [{"name": "turnstile", "newTag": version}]
    assert {pod.container["image"] for pod in pods().values()} == {"turnstile"}


def test_the_workers_actions_are_mounted_in_its_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = pods()["turnstile-worker"]
    generated = {g["name"]: g.get("files", []) for g in kustomization("base")["configMapGenerator"]}
    (mounted,) = [m for m in worker.container["volumeMounts"] if m["name"] == "actions"]
    assert f"WORKDIR {mounted['mountPath']}\n" in (ROOT / "Dockerfile").read_text()
    command = worker.container["command"]
    module = command[command.index("--actions") + 1]
    assert generated["turnstile-actions"] == [f"actions/{module}.py"]
    assert [action.definition.ref for action in actions_of_the_base(monkeypatch)] == ["hello.greet"]


def test_every_trigger_of_keda_reads_a_number_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    (action,) = actions_of_the_base(monkeypatch)
    service = of_kind("Service")["turnstile-executor"]
    for trigger in of_kind("ScaledObject")["turnstile-worker"]["spec"]["triggers"]:
        url = urlsplit(trigger["metadata"]["url"])
        assert url.hostname == f"{service['metadata']['name']}.{kustomization('keda')['namespace']}.svc"
        assert url.port in {port["port"] for port in service["spec"]["ports"]}
        assert url.path == f"/api/v1/pools/{action.definition.pool}"
        assert StoredPool.model_fields[trigger["metadata"]["valueLocation"]].annotation in (int, int | None)


def _from_elsewhere(pod: Pod) -> set[str]:
    """Return the variables of a pod from its secret and its config map."""
    names = set()
    for entry in pod.container["envFrom"]:
        if "secretRef" in entry:
            secrets = {s["metadata"]["name"]: s["stringData"] for s in read(SECRETS)}
            names |= secrets[entry["secretRef"]["name"]].keys()
        else:
            literals = {g["name"]: g.get("literals", []) for g in kustomization("base")["configMapGenerator"]}
            names |= {literal.partition("=")[0] for literal in literals[entry["configMapRef"]["name"]]}
    return names


def _routes() -> dict[str, set[str]]:
    """Return the routes of each service that need no token."""
    executor = health_routes.routes
    worker = health_app(dict).routes
    return {
        name: {route.path for route in routes if isinstance(route, Route)}
        for name, routes in (("executor", executor), ("worker", worker))
    }
