"""The scaling of workers. No package has KEDA's schemas: every field used here was held to its pages by hand.

https://keda.sh/docs/2.17/reference/scaledobject-spec/ and .../scalers/metrics-api/ say which there are.
"""

from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.unit.packaging.manifests import SECRETS, actions_of_the_base, kustomization, of_kind, pods, read
from turnstile.executor.reading import QueueStats


class Strict(BaseModel):
    """Knows all the fields there may be."""

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


def test_what_is_scaled_is_the_deployment_of_the_workers_and_nobody_else_says_how_many(
    scaled: ScaledObject,
) -> None:
    assert scaled.scaleTargetRef.name in of_kind("Deployment")
    (patch,) = kustomization("keda")["patches"]
    assert patch["target"] == {"kind": "Deployment", "name": scaled.scaleTargetRef.name}
    assert "path: /spec/replicas" in patch["patch"]


def test_what_is_asked_is_a_route_of_the_executors_service_and_a_number_in_its_answer(
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


def test_the_workers_at_their_most_have_as_many_places_as_the_action_has_slots(
    scaled: ScaledObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (action,) = actions_of_the_base(monkeypatch)
    places = pods()["turnstile-worker"].environment["TURNSTILE_WORKER_CONCURRENCY"]
    assert {trigger.metadata.targetValue for trigger in scaled.triggers} == {places}
    assert scaled.maxReplicaCount * int(places or 0) == action.definition.max_concurrent
    assert 1 <= scaled.minReplicaCount <= scaled.fallback.replicas <= scaled.maxReplicaCount


def test_the_token_that_is_sent_may_only_read(scaled: ScaledObject) -> None:
    secrets = {secret["metadata"]["name"]: secret["stringData"] for secret in read(SECRETS)}
    for trigger in scaled.triggers:
        authentication = of_kind("TriggerAuthentication")[trigger.authenticationRef.name]
        (source,) = authentication["spec"]["secretTargetRef"]
        assert source["parameter"] == "token"
        token = secrets[source["name"]][source["key"]]
        assert f"keda:read:{token}" in secrets["turnstile-executor"]["TURNSTILE_API_TOKENS"].split(",")
