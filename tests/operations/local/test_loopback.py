"""What Slurm needs of the loopback, judged by the C library and the kernel in networks of the tests' own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from infra.errors import EXIT_REFUSED
from operations.local import loopback
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.net_machines import need_net_machines

ASK = """
import json, sys
from operations.local.loopback import is_silent, is_unresolved
print(json.dumps([is_silent(), is_unresolved(ipv6=False), is_unresolved(ipv6=True)]))
"""


def found(before: str) -> list[list[str] | None]:
    """Return what the checks find in a new network, after a shell's line there."""
    need_net_machines()
    script = f'{before}; exec "$0" -c "$1"'
    command = ["unshare", "--net", "sh", "-ec", script, sys.executable, ASK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_a_loopback_that_is_down_is_named_with_the_cure() -> None:
    silent, _, _ = found("true")
    assert silent is not None
    assert silent[0].startswith("127.0.0.1 does not answer")
    cure = silent[1].removeprefix("As root: ")
    assert found(cure)[0] is None


def test_slurm_finds_the_loopback_alone_with_ipv6_or_another_address() -> None:
    up = "ip link set lo up"
    silent, alone, both = found(up)
    assert (silent, both) == (None, None), "EnableIPv6 in slurm.conf is enough"
    assert alone is not None
    assert "not even 127.0.0.1" in alone[0]
    cure = alone[1].removeprefix("As root: ")
    assert found(f"{up}; {cure}") == [None, None, None]


def test_up_refuses_such_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback.check_loopback()
    monkeypatch.setattr(loopback, "is_unresolved", lambda *, ipv6: ("nothing is found", "As root: do that"))
    with sentences.raises("host.loopback") as refused:
        loopback.check_loopback()
    assert refused.value.exit_code == EXIT_REFUSED
