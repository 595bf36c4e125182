"""Which published host keys are accepted."""

from __future__ import annotations

import pytest

from operations import host_keys
from tests.support import sentences

ED = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
EC = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg="  # noqa: E501
RSA = (
    "ssh-rsa AAAAB3NzaC1yc2EAAAABIwAAAQEAq2A7hRGmdnm9tUDbO9IDSwBK6TbQa+PXYPCPy6rbTrTtw7PHkccKrpp0yVhp5HdEIcKr"
)


def test_a_machine_with_an_rsa_key_only_is_known_too() -> None:
    assert host_keys.known_hosts([RSA]) == f"slurm-stacks {RSA}\n"


def test_known_hosts_has_every_key_under_one_name() -> None:
    assert host_keys.known_hosts([f"{ED} c", "ssh-dss AAAAB3NzaC1kc3M=", EC]) == (
        f"slurm-stacks {ED}\nslurm-stacks {EC}\n"
    )


def test_nothing_but_the_key_of_a_line_is_taken() -> None:
    assert host_keys.known_hosts([f"{ED} comment\n* {RSA}"]) == f"slurm-stacks {ED}\n"


def test_without_a_published_host_key_nothing_is_trusted() -> None:
    for keys in ([], ["ssh-dss AAAAB3NzaC1kc3M="]):
        with sentences.raises("ssh.no-host-key"):
            host_keys.known_hosts(keys)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ssh-ed25519",
        "garbage",
        f"{ED}\n* {RSA}",
        f"@cert-authority * {ED}",
        f"head {ED}",
        "ssh-ed25519 x",
    ],
)
def test_a_line_that_is_no_key_is_refused_by_name(line: str) -> None:
    with sentences.raises("ssh.host-key-form") as raised:
        host_keys.known_hosts([ED, line])
    assert repr(line) in str(raised.value)
