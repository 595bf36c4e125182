"""The secret of the munge key is made empty and is deleted with the cluster."""

from __future__ import annotations

import pytest

from infra.gcp.identity import GcpSecrets
from tests.support.gcp_mocks import declare, gcp_design
from tests.support.recorder import counts, unknown


@pytest.mark.parametrize("preview", [False, True])
def test_the_secret_is_empty_and_leaves_nothing_behind(preview: bool) -> None:
    made = declare(lambda: GcpSecrets("s", gcp_design()), preview=preview)
    assert counts(made) == {
        "slurm-stacks:index:GcpSecrets": 1,
        "gcp:secretmanager/secret:Secret": 1,  # and no version: its value is the controller's to make
    }
    secret = made.inputs("s-munge")
    assert secret["secretId"] == "c-munge"
    assert secret["deletionProtection"] is False
    assert secret["replication"] == {"userManaged": {"replicas": [{"location": "europe-west4"}]}}
    assert secret["labels"]["slurm-stacks-cluster"] == "c"
    assert not {"versionDestroyTtl", "ttl", "expireTime"} & set(secret), "it lives as long as its cluster"
    assert unknown(made, "s-munge") == set()
    assert made.parents()["s-munge"] == "s"
    assert made.closed.count("s") == 1


def test_its_name_is_known_only_when_it_is_there() -> None:
    for preview, expected in ((False, ["s-munge-id"]), (True, [])):
        seen: list[str] = []
        declare(lambda found=seen: GcpSecrets("s", gcp_design()).munge.apply(found.append), preview=preview)  # type: ignore[misc]
        assert seen == expected
