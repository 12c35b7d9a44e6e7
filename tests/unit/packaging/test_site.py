"""The documentation builds without a warning, and its reference names what the program has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.errors import Code
from turnstile.common.messages import ExecutionRequested
from turnstile.executor.settings import ExecutorSettings
from turnstile.worker.settings import WorkerSettings

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site into an empty folder."""
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "docs", str(folder))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built_and_reached_from_the_first(site: Path) -> None:
    # A page that no list of contents names would be a warning, and so a failure.
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}


def test_the_reference_names_every_setting_field_and_code(site: Path) -> None:
    assert site.is_dir()
    written = {path.stem: path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")}
    for name in (*ExecutorSettings.model_fields, *WorkerSettings.model_fields):
        assert f"`TURNSTILE_{name.upper()}`" in written["settings"]
    for name in ActionDefinition.model_fields:
        assert f"`{name}`" in written["actions"]
    for name in ExecutionRequested.model_fields:
        assert f"`{name}`" in written["request"]
    schema = written["request"].partition("```json\n")[2].partition("```")[0]
    assert json.loads(schema) == ExecutionRequested.model_json_schema()
    for code in Code:
        assert f"`{code}`" in written["states"]
