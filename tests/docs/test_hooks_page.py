"""docs/hooks.md and the example scripts: what they say is what the code does."""

from __future__ import annotations

import re
import subprocess

import pytest

from infra.config.cluster import LONGEST_SCRIPT, HookConfig
from tests.support.checkout import ROOT

PAGE = (ROOT / "docs" / "hooks.md").read_text()
FOLDER = ROOT / "examples" / "hooks"
SCRIPTS = sorted(FOLDER.iterdir())


def test_every_key_and_every_example_is_described() -> None:
    keys = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert keys == list(HookConfig.model_fields)
    assert re.findall(r"\(\.\./examples/hooks/([\w.-]+)\)", PAGE) == [
        "facts.sh",
        "docker.sh",
        "gdrcopy.sh",
        "users.sh",
    ]
    assert {path.name for path in SCRIPTS} == {"facts.sh", "docker.sh", "gdrcopy.sh", "users.sh"}
    default = HookConfig.model_fields["timeout"].default
    assert f"{default} by default" in PAGE
    assert f"at most {LONGEST_SCRIPT // 1024} KiB" in PAGE


@pytest.mark.parametrize("script", SCRIPTS, ids=[path.name for path in SCRIPTS])
def test_an_example_is_a_script_that_stops_at_its_first_error(script: str) -> None:
    text = (FOLDER / script).read_text()
    assert text.startswith(("#!/bin/sh\n", "#!/bin/bash\n"))
    assert re.search(r"^set -eu", text, re.M)
    shell = text.splitlines()[0].removeprefix("#!")
    done = subprocess.run([shell, "-n", FOLDER / script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_an_example_fetches_is_pinned() -> None:
    docker = (FOLDER / "docker.sh").read_text()
    assert re.search(r"^TOOLKIT=\d+\.\d+\.\d+-\d+ ", docker, re.M)
    assert '"${PACKAGES[@]/%/=$TOOLKIT}"' in docker
