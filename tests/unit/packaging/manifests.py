"""The manifests of deploy/kubernetes, and the command lines that deployments call."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from turnstile.worker.actions import RegisteredAction, load_actions

ROOT: Final = Path(__file__).parents[3]
KUBERNETES: Final = ROOT / "deploy" / "kubernetes"
KUSTOMIZATIONS: Final = ("base", "migrate", "keda")
SECRETS: Final = KUBERNETES / "secrets.example.yaml"

Document = dict[str, Any]


def help_of(command: list[str]) -> tuple[int, str]:
    """Parse a command by its real command line; --help at its end stops it before it acts."""
    program, *arguments = command
    app = import_module("turnstile.cli" if program == "turnstile" else f"turnstile.{program}.cli").app
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "400", "NO_COLOR": "1"})
    return result.exit_code, result.output


def assert_accepted(command: list[str], settings: Collection[str] = ()) -> None:
    """Fail unless our command line accepts the command and its help names every setting."""
    exit_code, output = help_of(command)
    assert exit_code == 0, output
    assert [name for name in settings if name not in output] == []


def parsed(text: str) -> list[Document]:
    """Return the documents of a text."""
    return [document for document in yaml.safe_load_all(text) if document]


@cache
def read(path: Path) -> list[Document]:
    """Return the documents of a file; callers must not change them."""
    return parsed(path.read_text())


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
