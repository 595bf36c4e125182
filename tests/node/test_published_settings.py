"""Settings that the previous version published are read like those of this version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.codec import to_json
from node.model import SETTINGS_VERSION, Site
from node.published import FIRST_VERSION, SECOND_VERSION, parse_settings, read_settings
from node.sites import AwsSite, GcpSite, LocalSite, MountSource
from tests.support.doubles import design

# `infra.clouds.site` and `cli.local.run_directory` made these in commit 3d64b17.
COMMON = {
    "root": "/",
    "user": "slurm",
    "controller_host": "controller",
    "controller_address": "10.0.0.7",
    "slurmctld_port": 6817,
    "slurmd_port": 6818,
    "first_address": None,
    "slurmdbd_port": 6819,
    "python": "/usr/bin/python3",
    "apps": "/apps",
    "shared": "/home",
    "addresses": {"controller": "10.0.0.7"},
}
AWS = {
    "region": "eu-west-1",
    "cluster": "c",
    "subnets": '{"eu-west-1b": "subnet-b"}',
    "templates": '{"cpu": "lt-1"}',
    "bucket": "c-bucket",
    "secret": "arn:c-munge",
    "log_group": "/slurm-stacks/c",
    "mounts": '{"/fsx": {"source": "fs.dns@tcp:/m"}, "/home": {"device": "/dev/sdf", "volume": "vol-1"}}',
}
GCP = {
    "project": "acme-ml",
    "region": "europe-west4",
    "zone": "europe-west4-a",
    "cluster": "c",
    "network": "https://compute/n",
    "subnetwork": "https://compute/s",
    "templates": '{"cpu": "https://compute/t"}',
    "zones": '{"cpu": ["europe-west4-b", "europe-west4-a"]}',
    "bucket": "c-bucket",
    "secret": "c-munge",
    "mounts": '{"/home": {"device": "/dev/disk/by-id/google-h", "disk": "https://compute/d"}}',
    "logs": "true",
}
PROCESSES = {"socket": "/run/agent.sock", "blocks": '{"debug": [[0, 64]]}'}
CONTAINERS = {"socket": "/agent.sock", "secret": "munge.key", "cloud_dns": "true", "cgroups": "/run/cgroups"}


def second(made: dict[str, Any]) -> dict[str, Any]:
    """Return a design with the field names of the first two formats."""
    made["machines"] = made.pop("isolation")
    for part in (*made["hosts"], *made["partitions"]):
        part["machine"] = part.pop("instance_type")
    return made


def former(provider: str, driver: dict[str, Any]) -> dict[str, Any]:
    made = second(to_json(design(provider=provider)))
    made["image"]["cuda"] = "12.5"
    made["mounts"] = [{key: value for key, value in m.items() if key != "name"} for m in made["mounts"]]
    return {"design": made, "site": {**COMMON, "driver": driver}, "api_version": FIRST_VERSION}


def site(**more: Any) -> Site:
    return Site("/", "slurm", "controller", "10.0.0.7", addresses={"controller": "10.0.0.7"}, **more)


@pytest.mark.parametrize(
    ("provider", "driver", "wanted"),
    [
        (
            "aws",
            AWS,
            site(
                bucket="c-bucket",
                secret="arn:c-munge",
                mounts={
                    "/fsx": MountSource("fs.dns@tcp:/m"),
                    "/home": MountSource(disk="vol-1", device="/dev/sdf"),
                },
                cloud=AwsSite(
                    "eu-west-1", "c", {"eu-west-1b": "subnet-b"}, {"cpu": "lt-1"}, "/slurm-stacks/c"
                ),
            ),
        ),
        (
            "gcp",
            GCP,
            site(
                bucket="c-bucket",
                secret="c-munge",
                mounts={"/home": MountSource(disk="https://compute/d", device="/dev/disk/by-id/google-h")},
                cloud=GcpSite(
                    "acme-ml",
                    "europe-west4",
                    "c",
                    {"cpu": "https://compute/t"},
                    {"cpu": ("europe-west4-b", "europe-west4-a")},
                    logs=True,
                ),
            ),
        ),
        ("local", PROCESSES, site(blocks={"debug": ((0, 64),)}, cloud=LocalSite("/run/agent.sock"))),
        (
            "local",
            CONTAINERS,
            site(secret="munge.key", cloud_dns=True, cgroups="/run/cgroups", cloud=LocalSite("/agent.sock")),
        ),
    ],
)
def test_the_former_form_is_read(tmp_path: Path, provider: str, driver: Any, wanted: Site) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(former(provider, driver)))
    read = read_settings(file)
    assert (read.site, read.design) == (wanted, design(provider=provider))
    assert read.api_version == SETTINGS_VERSION, "what is published again has the present form"
    assert parse_settings(json.dumps(to_json(read))) == read
    # The second format differs from the present one only in the design's field names.
    v2 = {**to_json(read), "design": second(to_json(read.design)), "api_version": SECOND_VERSION}
    assert parse_settings(json.dumps(v2)) == read


def test_a_damaged_former_form_is_named() -> None:
    content = former("aws", {**AWS, "mounts": '["/home"]'})
    with pytest.raises(ValueError, match=r"slurm-stacks/settings/v1 that are damaged: .*items"):
        parse_settings(json.dumps(content))
    unmarked = {**former("aws", AWS), "api_version": SETTINGS_VERSION}
    unmarked["design"] = to_json(design(provider="aws"))
    with pytest.raises(ValueError, match=r"Settings\.site: unknown fields driver"):
        parse_settings(json.dumps(unmarked))
