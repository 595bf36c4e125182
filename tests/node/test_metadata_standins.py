"""Tests that the fakes of both metadata services behave as in the clouds' documentation."""

from __future__ import annotations

import json

from tests.support.fake_imds import ROLE, FakeImds
from tests.support.fake_metadata import FakeMetadata

LIFE = "x-aws-ec2-metadata-token-ttl-seconds"


def imds(fake: FakeImds, method: str, path: str, **headers: str) -> tuple[int, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return fake.answer(method, path, named.get)


def token(fake: FakeImds, seconds: str = "60", **headers: str) -> tuple[int, str]:
    return imds(fake, "PUT", "/latest/api/token", **{LIFE.replace("-", "_"): seconds}, **headers)


def test_a_token_is_for_a_second_to_six_hours_and_for_nobody_behind_a_proxy() -> None:
    fake = FakeImds()
    for seconds in ("0", "21601", "-1", "x", ""):
        assert token(fake, seconds)[0] == 400, seconds
    assert token(fake, x_forwarded_for="10.0.0.1")[0] == 403
    assert fake.tokens == {}
    assert [token(fake, seconds)[0] for seconds in ("1", "21600")] == [200, 200]


def test_nothing_is_told_without_a_token_that_is_still_good() -> None:
    fake = FakeImds()
    _, good = token(fake)
    word = "x_aws_ec2_metadata_token"
    path = "/latest/meta-data/placement/region"
    assert imds(fake, "GET", path)[0] == 401
    assert imds(fake, "GET", path, **{word: "another"})[0] == 401
    assert imds(fake, "GET", path, **{word: good}) == (200, "eu-west-1")
    fake.tokens[good] = 0.0
    assert imds(fake, "GET", path, **{word: good})[0] == 401


def test_folders_and_versions_are_listed() -> None:
    fake = FakeImds()
    good = {"x_aws_ec2_metadata_token": token(fake)[1]}
    assert imds(fake, "GET", "/latest/meta-data/", **good) == (200, "ami-launch-index\niam/\nplacement/")
    assert imds(fake, "GET", "/2021-03-23/meta-data/placement", **good) == (200, "region")
    assert imds(fake, "GET", f"/latest/{ROLE}", **good) == (200, "compute-role")
    assert "latest" in imds(fake, "GET", "/", **good)[1].split()
    assert imds(fake, "GET", "/latest/meta-data/spot/instance-action", **good)[0] == 404
    assert imds(fake, "GET", "/meta-data/", **good)[0] == 404


def google(fake: FakeMetadata, path: str, query: str = "", **headers: str) -> tuple[int, str, dict[str, str]]:
    named = {"metadata-flavor": "Google", **headers}
    asked = dict(pair.split("=") for pair in query.split("&") if pair)
    status, body, told = fake.metadata(path, asked, named.get)
    return status, body.decode(), told


def test_googles_server_wants_its_header_and_no_proxy() -> None:
    fake = FakeMetadata()
    assert fake.metadata("instance/name", {}, lambda _header: None)[0] == 403
    assert google(fake, "instance/name", **{"metadata-flavor": "Other"})[0] == 403
    assert google(fake, "instance/name", **{"x-forwarded-for": "10.0.0.1"})[0] == 403
    status, name, told = google(fake, "instance/name")
    assert (status, name, told["Metadata-Flavor"]) == (200, "t-compute-3", "Google")
    assert told["Content-Type"] == "application/text"


def test_googles_folders_are_listed_moved_to_and_read_as_a_whole() -> None:
    fake = FakeMetadata()
    fake.instance["attributes"] = {"enable-oslogin": "TRUE"}
    fake.instance["networkInterfaces"] = [{"ip": "10.0.0.1"}]
    status, text, told = google(fake, "instance")
    assert (status, told["Location"]) == (301, "/computeMetadata/v1/instance/")
    assert google(fake, "instance/")[1].split() == [
        "name", "zone", "preempted", "maintenance-event", "attributes/", "network-interfaces/",
    ]  # fmt: skip
    assert google(fake, "instance/attributes/enable-oslogin")[1] == "TRUE"
    assert google(fake, "instance/network-interfaces/0/ip")[1] == "10.0.0.1"
    status, text, told = google(fake, "instance/attributes/", "recursive=True")
    assert (json.loads(text), told["Content-Type"]) == ({"enable-oslogin": "TRUE"}, "application/json")
    assert json.loads(google(fake, "", "recursive=true")[1])["project"]["projectId"] == "p-1"
    assert google(fake, "project/project-id")[1] == "p-1"
    assert google(fake, "instance/guest")[0] == 404
