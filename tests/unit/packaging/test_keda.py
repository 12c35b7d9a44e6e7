"""The scaling of workers by KEDA. No package has its schemas, so the models here follow its documentation:

https://keda.sh/docs/2.17/reference/scaledobject-spec/ and .../scalers/metrics-api/
"""

from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.unit.packaging.manifests import SECRETS, actions_of_the_base, kustomization, of_kind, pods, read
from turnstile.executor.queries import QueueStats


class Strict(BaseModel):
    """Rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")


class MetricsApi(Strict):
    url: str
    valueLocation: str  # noqa: N815
    targetValue: str = Field(pattern=r"^\d+$")  # noqa: N815
    authMode: Literal["bearer"]  # noqa: N815


class Name(Strict):
    name: str


class Trigger(Strict):
    type: Literal["metrics-api"]
    name: str
    metricType: Literal["AverageValue"]  # noqa: N815
    metadata: MetricsApi
    authenticationRef: Name  # noqa: N815


class Fallback(Strict):
    failureThreshold: int  # noqa: N815
    replicas: int


class ScaledObject(Strict):
    scaleTargetRef: Name  # noqa: N815
    pollingInterval: int  # noqa: N815
    minReplicaCount: int  # noqa: N815
    maxReplicaCount: int  # noqa: N815
    fallback: Fallback
    advanced: dict[Literal["horizontalPodAutoscalerConfig"], dict[Literal["behavior"], Any]]
    triggers: list[Trigger]


@pytest.fixture
def scaled() -> ScaledObject:
    return ScaledObject.model_validate(of_kind("ScaledObject")["turnstile-worker"]["spec"])


def test_only_keda_sets_the_replicas_of_the_worker_deployment(
    scaled: ScaledObject,
) -> None:
    assert scaled.scaleTargetRef.name in of_kind("Deployment")
    (patch,) = kustomization("keda")["patches"]
    assert patch["target"] == {"kind": "Deployment", "name": scaled.scaleTargetRef.name}
    assert "path: /spec/replicas" in patch["patch"]


def test_every_trigger_reads_a_number_of_queue_stats(
    scaled: ScaledObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (action,) = actions_of_the_base(monkeypatch)
    service = of_kind("Service")["turnstile-executor"]
    namespace = kustomization("keda")["namespace"]
    for trigger in scaled.triggers:
        url = urlsplit(trigger.metadata.url)
        assert url.hostname == f"{service['metadata']['name']}.{namespace}.svc"
        assert url.port in {port["port"] for port in service["spec"]["ports"]}
        assert url.path == f"/api/v1/actions/{action.definition.ref}/queue-stats"
        assert QueueStats.model_fields[trigger.metadata.valueLocation].annotation is int
    assert {t.metadata.valueLocation for t in scaled.triggers} == {"queue_length", "active_count"}


def test_the_maximum_of_workers_has_the_capacity_of_the_actions_limit(
    scaled: ScaledObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (action,) = actions_of_the_base(monkeypatch)
    concurrency = pods()["turnstile-worker"].environment["TURNSTILE_WORKER_CONCURRENCY"]
    assert {trigger.metadata.targetValue for trigger in scaled.triggers} == {concurrency}
    assert scaled.maxReplicaCount * int(concurrency or 0) == action.definition.max_concurrent
    assert 1 <= scaled.minReplicaCount <= scaled.fallback.replicas <= scaled.maxReplicaCount


def test_the_token_of_keda_has_the_role_read(scaled: ScaledObject) -> None:
    secrets = {secret["metadata"]["name"]: secret["stringData"] for secret in read(SECRETS)}
    for trigger in scaled.triggers:
        authentication = of_kind("TriggerAuthentication")[trigger.authenticationRef.name]
        (source,) = authentication["spec"]["secretTargetRef"]
        assert source["parameter"] == "token"
        token = secrets[source["name"]][source["key"]]
        assert f"keda:read:{token}" in secrets["turnstile-executor"]["TURNSTILE_API_TOKENS"].split(",")
