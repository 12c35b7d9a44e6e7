"""deploy/kubernetes as the tests see it: every document of every folder, and what pods say of themselves."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from turnstile.worker.actions import RegisteredAction, load_actions

ROOT: Final = Path(__file__).parents[3]
KUBERNETES: Final = ROOT / "deploy" / "kubernetes"
KUSTOMIZATIONS: Final = ("base", "migrate", "keda")
SECRETS: Final = KUBERNETES / "secrets.example.yaml"

Document = dict[str, Any]


def parsed(text: str) -> list[Document]:
    """Return the documents of a text."""
    return [document for document in yaml.safe_load_all(text) if document]


@cache
def read(path: Path) -> list[Document]:
    """Return the documents of a file, for nobody to change."""
    return parsed(path.read_text())


def kustomization(folder: str) -> Document:
    """Return what a folder is made of."""
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
    """What these rules look at in a pod that a Deployment or a Job makes."""

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
        """What is set in the pod itself; None where the value comes from elsewhere."""
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
    """Return every pod, by the name of what makes it."""
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
    """Return the actions that the base's workers serve, as a worker there loads them."""
    monkeypatch.syspath_prepend(KUBERNETES / "base" / "actions")
    return load_actions("hello")
