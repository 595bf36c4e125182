"""SECURITY.md names what is installed without a known key."""

from __future__ import annotations

import ast

from node.bootstrap.vm import buckets, lustre, ops_agent
from tests.support.checkout import ROOT


def test_security_md_names_every_repository_whose_key_is_not_pinned() -> None:
    """What `add_repository` adds without a fingerprint would count as a vulnerability, but for this list."""
    found = set()
    for file in sorted((ROOT / "node").rglob("*.py")):
        calls = [call for call in ast.walk(ast.parse(file.read_text())) if isinstance(call, ast.Call)]
        for call in calls:
            adds = getattr(call.func, "attr", "") == "add_repository"
            if adds and not any(word.arg == "fingerprint" for word in call.keywords):
                found.add(file.relative_to(ROOT / "node/bootstrap/vm").as_posix())
    assert found == {"buckets.py", "ops_agent.py", "lustre.py"}
    page = (ROOT / "SECURITY.md").read_text()
    for name in (buckets.GCSFUSE, ops_agent.PACKAGE, "fsx-lustre-client-repo", "packages.cloud.google.com"):
        assert name in page
    assert lustre.REPOSITORY.startswith("https://fsx-lustre-client-repo.")
    assert {buckets.REPOSITORY, ops_agent.REPOSITORY} == {"https://packages.cloud.google.com/apt"}
