"""The real Pulumi CLI with a file backend of the test. Without a CLI the tests are skipped with a reason."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from infra.program import locations

NO_CLI = "pulumi CLI is not on PATH"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)
            if shutil.which("pulumi") is None:
                item.add_marker(pytest.mark.skip(reason=NO_CLI))


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CLI without a login, with the command plugin of this user's own installation."""
    from cli.engine.automation import command_plugin

    if why := command_plugin(lambda _event: None):
        pytest.skip(f"pulumi has no command plugin and cannot get it: {why}")
    plugins = locations.pulumi_home() / "plugins"
    for variable in [name for name in os.environ if name.startswith(("PULUMI_", "SLURM_STACKS_"))]:
        monkeypatch.delenv(variable)
    home = tmp_path / "pulumi-home"
    home.mkdir()
    (home / "plugins").symlink_to(plugins)
    monkeypatch.setenv("PULUMI_HOME", str(home))
    monkeypatch.setenv("PULUMI_SKIP_UPDATE_CHECK", "true")
    # A plugin on PATH would be used in the place of the one that a test puts into PULUMI_HOME.
    monkeypatch.setenv("PULUMI_IGNORE_AMBIENT_PLUGINS", "true")
    # The CLI needs uv, which the projects' toolchain names, on PATH. It may be only in this environment.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def backend(pulumi: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The user is logged in to a file backend, with a passphrase."""
    folder = tmp_path / "backend"
    folder.mkdir()
    url = f"file://{folder}"
    monkeypatch.setenv("PULUMI_BACKEND_URL", url)
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "test")
    return url
