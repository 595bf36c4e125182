"""Impossible images, places, access, networks and storage: one mistake each, at its path."""

from __future__ import annotations

from typing import Any

import pytest

from infra import addresses
from infra.config.hosts import LoginConfig
from tests.support.stack_parts import VPC, Refused, check_refusal, check_sentences, each_refusal
from tests.support.stack_values import REMOVE

SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA ada@laptop"
ADA: dict[str, Any] = {"name": "ada", "id": 2001}
LDAP: dict[str, Any] = {"domain": "corp", "uris": ["ldaps://a.example.com"], "search_base": "dc=a"}
DIRECTORY_SECRET = "access.directory.password_secret"
ARN = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:reader-AbCdEf"

# stack, changes, path and code of the one mistake
REFUSED: list[Refused] = [
    # images
    (
        "aws",
        {
            "image.bake": True,
            "controller.image": {"id": "ami-01234567"},
            "partitions[0].image": {"id": "ami-01234567"},
            "partitions[1].image": {"id": "ami-01234567"},
        },
        "image.bake",
        "image.bake-unused",
    ),
    (
        "aws",
        {"image": {"id": "ami-01234567", "source": "ubuntu-24.04"}},
        "image.source",
        "image.id-and-source",
    ),
    ("aws", {"image.id": "my-image"}, "image.id", "image.id"),
    ("gcp", {"controller.image": {"id": "ami-01234567!"}}, "controller.image.id", "image.id"),
    ("gcp", {"image.id": "ami-0123456789abcdef0"}, "image.id", "image.id"),
    ("local", {"image.bake": True}, "image.bake", "image.local"),
    ("aws", {"image.revision": "2026-11-26"}, "image.revision", "image.revision-unused"),
    ("gcp", {"image.bake": True, "image.revision": "New one"}, "image.revision", "value.form"),
    ("local", {"partitions[0].image.id": "ami-01234567"}, "partitions[0].image.id", "image.local"),
    ("aws", {"partitions[0].image": {"id": "x"}}, "partitions[0].image.id", "image.id"),
    # users of the machines
    ("gcp", {"users": [{"name": "ada", "id": 2001}]}, "users[0].id", "users.on-gcp"),
    ("gcp", {"users": [{"name": "ada", "ssh_keys": [SSH_KEY]}]}, "users[0].ssh_keys", "users.on-gcp"),
    ("gcp", {"users": [{"name": "ada", "sudo": True}]}, "users[0].sudo", "users.on-gcp"),
    ("local", {"users": [{"name": "ada", "id": 2001}]}, "users[0].id", "users.on-processes"),
    ("batch", {"users": [{"name": "ada", "id": 2001}]}, "users[0].id", "users.on-batch"),
    ("aws", {"users": [{"name": "ada", "groups": ["docker"]}]}, "users[0].groups", "users.needs-id"),
    ("aws", {"users": [{"name": "ada", "sudo": True}]}, "users[0].sudo", "users.needs-id"),
    ("aws", {"users": [{"name": "ubuntu", "id": 2001}]}, "users[0].name", "users.system-name"),
    ("aws", {"users": [{"name": "ada.l", "id": 2001}]}, "users[0].name", "users.machine-name"),
    ("aws", {"users": [{"name": "ada", "id": 1000}]}, "users[0].id", "users.system-id"),
    ("aws", {"users": [{"name": "ada", "id": 65534}]}, "users[0].id", "users.system-id"),
    ("aws", {"users": [{"name": "ada", "id": 100001}]}, "users[0].id", "users.system-id"),
    ("aws", {"users": [{**ADA, "groups": ["docker:3001"]}]}, "users[0].groups[0]", "users.system-group"),
    ("aws", {"users": [{**ADA, "groups": ["lab:1000"]}]}, "users[0].groups[0]", "users.system-group"),
    ("aws", {"users": [ADA, {"name": "ada", "id": 2002}]}, "users[1].name", "users.name-twice"),
    ("aws", {"users": [ADA, {"name": "bob", "id": 2001}]}, "users[1].id", "users.id-twice"),
    (
        "aws",
        {"users": [{**ADA, "groups": ["lab:3001"]}, {"name": "bob", "id": 2002, "groups": ["lab:3002"]}]},
        "users[1].groups[0]",
        "users.group-clash",
    ),
    ("aws", {"users": [{**ADA, "groups": ["lab:2001"]}]}, "users[0].groups[0]", "users.group-clash"),
    (
        "aws",
        {"users": [{**ADA, "groups": ["lab:3001", "team:3001"]}]},
        "users[0].groups[1]",
        "users.group-clash",
    ),
    ("aws", {"users": [{**ADA, "groups": ["lab:12"]}]}, "users[0].groups[0]", "value.form"),
    ("aws", {"users": [{**ADA, "ssh_keys": ["ssh-ed25519"]}]}, "users[0].ssh_keys[0]", "value.form"),
    # a directory of users
    ("local", {"access.directory": LDAP}, "access.directory", "directory.on-processes"),
    ("batch", {"access.directory": LDAP}, "access.directory", "directory.on-batch"),
    ("aws", {"access.directory": {**LDAP, "bind_dn": "cn=r"}}, DIRECTORY_SECRET, "directory.no-password"),
    ("aws", {"access.directory": {**LDAP, "password_secret": ARN}}, DIRECTORY_SECRET, "directory.no-bind-dn"),
    (
        "gcp",
        {"access.directory": {**LDAP, "ldap_schema": "ad"}},
        "access.directory.bind_dn",
        "directory.ad-needs-bind",
    ),
    (
        "aws",
        {"access.directory": {**LDAP, "bind_dn": "cn=r", "password_secret": "a password"}},
        DIRECTORY_SECRET,
        "directory.secret",
    ),
    (
        "gcp",
        {"access.directory": {**LDAP, "bind_dn": "cn=r", "password_secret": ARN}},
        DIRECTORY_SECRET,
        "directory.secret",
    ),
    (
        "local",
        {
            "local": {"isolation": "container"},
            "access.directory": {**LDAP, "bind_dn": "cn=r", "password_secret": "here"},
        },
        DIRECTORY_SECRET,
        "directory.secret",
    ),
    ("aws", {"access.directory": {**LDAP, "uris": ["ldap://a"]}}, "access.directory.uris[0]", "value.form"),
    (
        "aws",
        {"access.directory": {**LDAP, "search_base": "dc=a\nldap_tls_reqcert = never"}},
        "access.directory.search_base",
        "value.form",
    ),
    # place
    ("aws", {"aws:region": REMOVE}, "aws:region", "location.aws-region-missing"),
    ("aws", {"aws:region": "us-east-1a"}, "aws:region", "location.aws-region"),
    ("aws", {"aws:region": "Frankfurt"}, "aws:region", "location.aws-region"),
    ("aws", {"aws:region": "eu-cental-1"}, "aws:region", "location.aws-region"),
    ("aws", {"aws:region": "eu-moon-1"}, "aws:region", "location.aws-region"),
    ("aws", {"aws:region": 1}, "aws:region", "value.type"),
    ("gcp", {"gcp:zone": REMOVE}, "gcp:zone", "location.gcp-zone-missing"),
    ("gcp", {"gcp:project": REMOVE}, "gcp:project", "location.gcp-project-missing"),
    ("gcp", {"gcp:project": "My Project"}, "gcp:project", "location.gcp-project"),
    ("gcp", {"gcp:zone": "europe-west4"}, "gcp:zone", "location.gcp-zone"),
    ("gcp", {"gcp:region": "us-east1"}, "gcp:region", "location.gcp-region"),
    # access
    ("aws", {"access.mode": "iap"}, "access.mode", "access.mode"),
    ("gcp", {"access.mode": "ssm"}, "access.mode", "access.mode"),
    ("aws", {"access": {"mode": "ssh", "key": "mine"}}, "access.ssh_cidrs", "access.no-cidrs"),
    (
        "aws",
        {"access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.0/24"]}},
        "access.key",
        "access.no-key-pair",
    ),
    ("aws", {"access.ssh_cidrs": ["203.0.113.0/24"]}, "access.ssh_cidrs", "access.cidrs-need-ssh"),
    ("aws", {"access.users": ["user:ada@example.com"]}, "access.users", "access.users-on-aws"),
    ("local", {"access.users": ["user:ada@example.com"]}, "access.users", "access.local"),
    ("gcp", {"access.users": ["ada@example.com"]}, "access.users[0]", "value.form"),
    ("gcp", {"access.users": ["allUsers"]}, "access.users[0]", "value.form"),
    (
        "aws",
        {"access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.0/24", "0.0.0.0/0"], "key": "mine"}},
        "access.ssh_cidrs[1]",
        "access.open-to-all",
    ),
    (
        "aws",
        {"access": {"mode": "ssh", "ssh_cidrs": ["::/0"], "key": "mine"}},
        "access.ssh_cidrs[0]",
        "access.open-to-all",
    ),
    (
        "aws",
        {"access": {"mode": "ssh", "ssh_cidrs": ["128.0.0.0/1"], "key": "mine"}},
        "access.ssh_cidrs[0]",
        "access.open-to-all",
    ),
    (
        "gcp",
        {"access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.0/24"], "key": "mine"}},
        "access.key",
        "access.key-on-gcp",
    ),
    ("local", {"access.mode": "ssh"}, "access.mode", "access.local"),
    # the metadata address
    (
        "aws",
        {"login.open_metadata": True},
        "login.open_metadata",
        "metadata.login-on-controller",
    ),
    (
        "gcp",
        {"login": {"count": 0, "open_metadata": True}},
        "login.open_metadata",
        "metadata.login-on-controller",
    ),
    (
        "local",
        {"partitions[0].open_metadata": True},
        "partitions[0].open_metadata",
        "metadata.local",
    ),
    # network
    (
        "gcp",
        {"network.cidr": "10.0.0.0/24", "partitions[0].nodes.max": 251},
        "network.cidr",
        "network.too-small",
    ),
    ("aws", {"network.cidr": "8.8.0.0/16"}, "network.cidr", "network.cidr"),
    ("aws", {"network.cidr": "0.0.0.0/16"}, "network.cidr", "network.cidr-reserved"),
    ("gcp", {"network.cidr": "127.0.0.0/16"}, "network.cidr", "network.cidr-reserved"),
    ("gcp", {"network.cidr": "169.254.0.0/16"}, "network.cidr", "network.cidr-reserved"),
    ("gcp", {"network.cidr": "255.255.255.0/24"}, "network.cidr", "network.cidr-reserved"),
    ("aws", {"network.cidr": "10.0.0.0/8"}, "network.cidr", "network.cidr"),
    ("aws", {"network.public_cidr": "10.1.0.0/24"}, "network.public_cidr", "network.subnet-outside"),
    (
        "aws",
        {"network.public_cidr": "10.0.0.0/20", "network.private_cidr": "10.0.8.0/21"},
        "network.private_cidr",
        "network.subnet-overlap",
    ),
    ("aws", {"network.public_cidr": "10.0.0.0/28"}, "network.public_cidr", "network.public-too-small"),
    ("aws", {"network.public_cidr": "10.0.128.0/24"}, "network.public_cidr", "network.subnet-overlap"),
    ("gcp", {"network.peers": ["192.168.0.0/16", "10.0.3.0/24"]}, "network.peers[1]", "network.peer-overlap"),
    ("aws", {"network": {"aws": VPC, "cidr": "10.5.0.0/16"}}, "network.cidr", "network.cidr-of-existing"),
    (
        "aws",
        {"network.aws": {"vpc": "vpc-12345678", **VPC, "public_subnet": None}},
        "network.aws.public_subnet",
        "network.aws-incomplete",
    ),
    ("gcp", {"network.gcp": {"network": "lab"}}, "network.gcp.subnetwork", "network.gcp-incomplete"),
    (
        "gcp",
        {"network.gcp": {"network": "projects/host/global/networks/lab", "subnetwork": "nodes"}},
        "network.gcp.network",
        "network.gcp-name",
    ),
    (
        "gcp",
        {"network.gcp": {"network": "lab", "subnetwork": "Nodes"}},
        "network.gcp.subnetwork",
        "network.gcp-name",
    ),
    ("gcp", {"network.private_cidr": "10.0.4.0/24"}, "network.private_cidr", "network.cidr-on-gcp"),
    (
        "gcp",
        {"access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.0/24", "2001:db8::/32"]}},
        "access.ssh_cidrs[1]",
        "access.ipv6",
    ),
    (
        "aws",
        {"access": {"mode": "ssh", "ssh_cidrs": ["2001:db8::/32"], "key": "k"}},
        "access.ssh_cidrs[0]",
        "access.ipv6",
    ),
    ("gcp", {"name": "my-google-lab"}, "name", "name.google"),
    ("aws", {"name": "xn--a"}, "name", "name.s3"),
    ("aws", {"name": "sthree-lab"}, "name", "name.s3"),
    ("aws", {"name": "amzn-s3-demo-lab"}, "name", "name.s3"),
    ("gcp", {"name": "goog-lab"}, "name", "name.google"),
    (
        "gcp",
        {"partitions[0].name": "login-gpu", "@partition": "login-gpu"},
        "partitions[0].name",
        "partition.name-prefix",
    ),
    (
        "aws",
        {"partitions[0].name": "image", "@partition": "image"},
        "partitions[0].name",
        "partition.name-prefix",
    ),
    ("aws", {"partitions[0].name": "image-compute"}, "partitions[0].name", "partition.name-prefix"),
    (
        "gcp",
        {"partitions[0].name": "image", "@partition": "image"},
        "partitions[0].name",
        "partition.name-prefix",
    ),
    (
        "gcp",
        {"partitions[0].reservation": "v100s", "network.zones": ["europe-west4-a", "europe-west4-b"]},
        "partitions[0].reservation",
        "reservation.several-zones",
    ),
    ("gcp", {"network.aws": VPC}, "network.aws", "provider.other-settings"),
    ("local", {"network.cidr": "10.0.0.0/16"}, "network.cidr", "network.local"),
    # storage
    ("local", {"storage.home": {"kind": "nfs"}}, "storage.home", "storage.local"),
    ("gcp", {"storage.home": {"kind": "efs"}}, "storage.home.kind", "storage.kind"),
    ("aws", {"storage.home": {"kind": "filestore"}}, "storage.home.kind", "storage.kind"),
    (
        "aws",
        {"storage.home": {"kind": "efs", "size_gib": 100}},
        "storage.home.size_gib",
        "storage.other-kind",
    ),
    ("aws", {"storage.apps": {"deployment": "SCRATCH_2"}}, "storage.apps.deployment", "storage.other-kind"),
    ("aws", {"storage.home.size_gib": 20000}, "storage.home.size_gib", "storage.disk-too-large"),
    ("aws", {"storage.scratch.size_gib": 3600}, "storage.scratch.size_gib", "fsx.size"),
    ("aws", {"storage.scratch.size_gib": 1000}, "storage.scratch.size_gib", "fsx.size"),
    ("aws", {"storage.scratch.size_gib": REMOVE}, "storage.scratch.size_gib", "fsx.size-missing"),
    (
        "aws",
        {"storage.scratch": {"kind": "fsx_lustre", "deployment": "SCRATCH_1", "size_gib": 4800}},
        "storage.scratch.size_gib",
        "fsx.size",
    ),
    *(
        (
            "aws",
            {
                "storage.scratch": {
                    **{"kind": "fsx_lustre", "deployment": "SCRATCH_1", "size_gib": 3600},
                    **{"s3_export": "s3://data/x", **linked},
                }
            },
            "storage.scratch.s3_export",
            "fsx.export-bucket",
        )
        for linked in ({}, {"s3_import": "s3://other/x"})
    ),
    ("aws", {"storage.scratch.throughput": 250}, "storage.scratch.throughput", "fsx.no-throughput"),
    (
        "aws",
        {"storage.scratch.deployment": "PERSISTENT_2"},
        "storage.scratch.throughput",
        "fsx.throughput-missing",
    ),
    (
        "aws",
        {"storage.scratch.deployment": "PERSISTENT_2", "storage.scratch.throughput": 200},
        "storage.scratch.throughput",
        "fsx.throughput",
    ),
    ("aws", {"storage.scratch.storage_type": "HDD"}, "storage.scratch.storage_type", "fsx.hdd"),
    (
        "aws",
        {
            "storage.scratch": {
                "kind": "fsx_lustre",
                "deployment": "PERSISTENT_1",
                "storage_type": "HDD",
                "throughput": 40,
                "size_gib": 2400,
            }
        },
        "storage.scratch.size_gib",
        "fsx.size",
    ),
    ("gcp", {"storage.scratch": {"kind": "filestore"}}, "storage.scratch.size_gib", "filestore.size-missing"),
    (
        "gcp",
        {"storage.scratch": {"kind": "filestore", "tier": "ZONAL", "size_gib": 11000}},
        "storage.scratch.size_gib",
        "filestore.size",
    ),
    (
        "gcp",
        {"storage.scratch": {"kind": "filestore", "size_gib": 70000}},
        "storage.scratch.size_gib",
        "filestore.size",
    ),
    ("gcp", {"storage.home": {"size_gib": 5}}, "storage.home.size_gib", "storage.disk-too-small"),
    (
        "gcp",
        {"storage.scratch": {"kind": "filestore", "tier": "BASIC_SSD", "size_gib": 1024}},
        "storage.scratch.size_gib",
        "filestore.size",
    ),
    (
        "gcp",
        {
            "partitions[0].instance_type": "e2-standard-2",
            "partitions[0].accelerator": None,
            "partitions[1].instance_type": "e2-standard-4",
            "storage.local_scratch": {},
        },
        "storage.local_scratch",
        "local-scratch.no-nvme",
    ),
    (
        "aws",
        {"partitions[1].instance_type": "m5.large", "storage.local_scratch": {"kind": "nvme"}},
        "storage.local_scratch",
        "local-scratch.no-nvme",
    ),
    ("aws", {"storage.apps.path": "/home"}, "storage.apps.path", "mount.twice"),
    ("aws", {"storage.scratch.path": "/apps"}, "storage.scratch.path", "mount.twice"),
    ("aws", {"storage.scratch.path": "/home/data"}, "storage.scratch.path", "mount.inside-other"),
    (
        "aws",
        {"storage.home.path": "/data/home", "storage.scratch.path": "/data"},
        "storage.scratch.path",
        "mount.inside-other",
    ),
    ("aws", {"storage.scratch.path": "/usr/local"}, "storage.scratch.path", "mount.system-path"),
    (
        "gcp",
        {"partitions[1].placement": "cluster", "partitions[1].reservation": "close"},
        "partitions[1].placement",
        "reservation.placement",
    ),
    (
        "gcp",
        {"partitions[1].gcp": {"placement_policy": "mine"}},
        "partitions[1].gcp.placement_policy",
        "placement-policy.no-reservation",
    ),
    # A disk of Google's has the name of its directory, and a machine's that of the machine.
    (
        "gcp",
        {"storage.scratch": {"kind": "nfs", "path": "/controller"}},
        "storage.scratch.path",
        "storage.name-of-machine",
    ),
    (
        "gcp",
        {"storage.scratch": {"kind": "nfs", "path": "/login-0"}},
        "storage.scratch.path",
        "storage.name-of-machine",
    ),
    (
        "gcp",
        {"storage.scratch": {"kind": "nfs", "path": "/image-cpu"}},
        "storage.scratch.path",
        "storage.name-of-machine",
    ),
    (
        "gcp",
        {"storage.apps": {"kind": "nfs", "path": "/debug/0"}},
        "storage.apps.path",
        "storage.name-of-machine",
    ),
    (
        "gcp",
        {"storage.home": {"kind": "nfs", "path": "/a/b"}, "storage.apps": {"kind": "nfs", "path": "/a-b"}},
        "storage.apps.path",
        "mount.same-name",
    ),
    (
        "gcp",
        {
            "storage.home": {"kind": "filestore", "size_gib": 1024, "path": "/a/b"},
            "storage.scratch": {"kind": "filestore", "size_gib": 1024, "path": "/a-b"},
        },
        "storage.scratch.path",
        "mount.same-name",
    ),
    (
        "aws",
        {"storage.home": {"kind": "nfs", "path": "/a/b"}, "storage.apps": {"kind": "nfs", "path": "/a-b"}},
        "storage.apps.path",
        "mount.same-name",
    ),
    (
        "aws",
        {"storage.home": {"kind": "efs", "path": "/a/b"}, "storage.apps": {"kind": "efs", "path": "/a-b"}},
        "storage.apps.path",
        "mount.same-name",
    ),
]


@each_refusal(REFUSED)
def test_refused(stack: str, changes: dict[str, Any], path: str, code: str) -> None:
    check_refusal(stack, changes, path, code)


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    check_sentences(pytestconfig, __file__, REFUSED)


def test_the_smallest_public_subnet_has_room_for_every_login_machine() -> None:
    limits = [getattr(bound, "le", None) for bound in LoginConfig.model_fields["count"].metadata]
    (most,) = [limit for limit in limits if limit is not None]
    nat_gateway = 1
    smallest = f"10.0.0.0/{addresses.LONGEST_PREFIX}"
    assert addresses.free_addresses(smallest, "aws") >= most + nat_gateway
