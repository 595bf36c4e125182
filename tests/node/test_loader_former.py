"""Tests of a boot while a newer version is published: the loader is new, the code is not yet."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from infra import bundle
from tests.support.checkout import ROOT

SAY = "def bootstrap(*arguments):\n    print('booted', *arguments)\n"


def boot(folder: Path, package: str, text: str) -> subprocess.CompletedProcess[str]:
    """Runs this version's loader with code whose bootstrap is in `package`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        parts = f"{package}/bootstrap".split("/")
        for n in range(1, len(parts) + 1):
            archive.writestr(f"{'/'.join(parts[:n])}/__init__.py", "")
        archive.writestr(f"{package}/bootstrap/main.py", text)
    code, bucket = buffer.getvalue(), folder / "bucket"
    pointer = bundle.current(code, b"{}")
    for name, content in ((pointer["code"]["key"], code), (pointer["settings"]["key"], b"{}")):
        (bucket / name).parent.mkdir(parents=True, exist_ok=True)
        (bucket / name).write_bytes(content)
    (bucket / "current.json").write_text(json.dumps(pointer))
    line = [str(ROOT / "node" / "loader.py"), "--bucket", str(bucket), "--code", str(folder / "opt")]
    return subprocess.run(
        [sys.executable, "-I", "-S", *line, "--role", "compute", "--host", "cpu-0"],
        capture_output=True, text=True, timeout=60, cwd="/", check=False,
    )  # fmt: skip


@pytest.mark.parametrize("package", ["node", "infra/node"])
def test_the_loader_starts_code_of_both_layouts(tmp_path: Path, package: str) -> None:
    done = boot(tmp_path, package, SAY)
    assert (done.stderr, done.stdout.split()[2:4]) == ("", ["compute", "cpu-0"])


def test_code_that_lacks_a_module_says_which(tmp_path: Path) -> None:
    done = boot(tmp_path, "node", f"import node.not_there\n{SAY}")
    assert done.returncode != 0
    assert "No module named 'node.not_there'" in done.stderr
