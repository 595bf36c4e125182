"""Which published host keys are accepted, and which of them a client gets."""

from __future__ import annotations

import pytest

from infra.errors import UserError
from infra.ssh import hostkeys

ED = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
EC = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg="  # noqa: E501
RSA = (
    "ssh-rsa AAAAB3NzaC1yc2EAAAABIwAAAQEAq2A7hRGmdnm9tUDbO9IDSwBK6TbQa+PXYPCPy6rbTrTtw7PHkccKrpp0yVhp5HdEIcKr"
)


@pytest.mark.parametrize("keys", [[RSA, EC, ED], [ED], [EC, f"{ED} root@head with spaces\n"]])
def test_the_key_for_a_client_that_takes_one_is_the_best(keys: list[str]) -> None:
    assert hostkeys.pin(keys) == ED


def test_rsa_alone_cannot_be_pinned_there_but_by_openssh() -> None:
    assert hostkeys.pin([RSA, EC]) == EC
    with pytest.raises(UserError, match=r"RSA host keys only.*ssh-keygen -A"):
        hostkeys.pin([RSA])
    assert hostkeys.known_hosts([RSA]) == f"slurm-stacks {RSA}\n"


def test_known_hosts_has_every_key_under_one_name() -> None:
    assert hostkeys.known_hosts([f"{ED} c", "ssh-dss AAAAB3NzaC1kc3M=", EC]) == (
        f"slurm-stacks {ED}\nslurm-stacks {EC}\n"
    )


def test_nothing_but_the_key_of_a_line_is_taken() -> None:
    assert hostkeys.known_hosts([f"{ED} comment\n* {RSA}"]) == f"slurm-stacks {ED}\n"


def test_no_key_is_no_trust() -> None:
    for keys in ([], ["ssh-dss AAAAB3NzaC1kc3M="]):
        for client in (hostkeys.pin, hostkeys.known_hosts):
            with pytest.raises(UserError, match="published no SSH host key"):
                client(keys)


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
    for client in (hostkeys.pin, hostkeys.known_hosts):
        with pytest.raises(UserError, match="no public SSH host key") as raised:
            client([ED, line])
        assert repr(line) in str(raised.value)


def test_a_plans_placeholder_stays_readable() -> None:
    assert hostkeys.pin(["<head.hostKeys[0]>"]) == "<head.hostKeys[0]>"
