"""The limits of EC2's calls, beyond which it refuses them: ids, filters, pages, tags.

The sources are the descriptions in botocore's own model of EC2 (`TerminateInstances`: up to 1000 ids;
`DescribeInstanceStatus` and `DescribeInstanceTopology`: up to 100, and no ids beside MaxResults; the results
of a page: `DescribeLaunchTemplateVersions` 1 to 200, `DescribeInstanceTopology` 1 to 100; the names of
filters; what a launch may tag) and EC2's user guide: 200 values of filters a call (Filter your resources),
50 tags a resource, keys of 128 characters and values of 256 that do not begin with `aws:` (Tag your
resources), 5 to 1000 results a page (Query requests, pagination).
"""

from __future__ import annotations

import functools
import re
from typing import Any

import botocore.session

from tests.support import fake_ec2_xml as xml

IDS = {"TerminateInstances": 1000, "DescribeInstanceStatus": 100, "DescribeInstanceTopology": 100}
PAGES = {"DescribeLaunchTemplateVersions": (1, 200), "DescribeInstanceTopology": (1, 100)}
PAGE = (5, 1000)
FILTER_VALUES = 200
TAGS = 50
KEY_LENGTH, VALUE_LENGTH = 128, 256
TAGGED_AT_LAUNCH = {"instance", "volume", "spot-instances-request", "network-interface"}
TOKEN_LENGTH = 64


def refusal(action: str, params: dict[str, str]) -> xml.Answer | None:
    """Return EC2's answer to a call that exceeds a limit; `None` means that the call is allowed."""
    return _ids(action, params) or _page(action, params) or _filters(action, params) or _tags(action, params)


def _ids(action: str, params: dict[str, str]) -> xml.Answer | None:
    ids = [key for key in params if re.fullmatch(r"InstanceId\.\d+", key)]
    if len(ids) > IDS.get(action, 1000):
        return xml.error("InvalidParameterValue", f"{len(ids)} instance IDs: at most {IDS.get(action, 1000)}")
    if ids and "MaxResults" in params:
        return xml.error(
            "InvalidParameterCombination",
            "The parameter instancesSet cannot be used with the parameter maxResults",
        )
    return None


def _page(action: str, params: dict[str, str]) -> xml.Answer | None:
    if "MaxResults" not in params:
        return None
    least, most = PAGES.get(action, PAGE)
    if not least <= int(params["MaxResults"]) <= most:
        return xml.error(
            "InvalidParameterValue", f"Value ( {params['MaxResults']} ) for parameter maxResults is invalid."
        )
    return None


def _filters(action: str, params: dict[str, str]) -> xml.Answer | None:
    wanted = xml.filters(params)
    if sum(map(len, wanted.values())) > FILTER_VALUES:
        return xml.error(
            "FilterLimitExceeded", "The maximum number of filter values specified on a single call is 200"
        )
    for name in wanted:
        if not name.startswith("tag:") and name not in _known(action):
            return xml.error("InvalidParameterValue", f"The filter '{name}' is invalid")
    return None


def _tags(action: str, params: dict[str, str]) -> xml.Answer | None:
    tags: dict[str, dict[str, str]] = {}
    for name, key in params.items():
        if match := re.fullmatch(r"(TagSpecification\.\d+)\.Tag\.(\d+)\.Key", name):
            given = tags.setdefault(match[1], {})
            value = params.get(name.removesuffix("Key") + "Value", "")
            if key in given:
                return xml.error("InvalidParameterValue", f"Duplicate tag key '{key}' specified.")
            if key.lower().startswith("aws:"):
                return xml.error(
                    "InvalidParameterValue", f"Tag keys starting with 'aws:' are reserved: {key}"
                )
            if len(key) > KEY_LENGTH or len(value) > VALUE_LENGTH:
                return xml.error("InvalidParameterValue", f"The tag {key} is too long")
            given[key] = value
    for head, given in tags.items():
        if len(given) > TAGS:
            return xml.error("TagLimitExceeded", f"The maximum number of Tags for a resource is {TAGS}")
        kind = params.get(f"{head}.ResourceType")
        if action == "RunInstances" and kind not in TAGGED_AT_LAUNCH:
            return xml.error(
                "InvalidParameterValue", f"'{kind}' is not a valid taggable resource type for this operation."
            )
    token = params.get("ClientToken", "")
    if len(token) > TOKEN_LENGTH or not token.isascii():
        return xml.error("InvalidParameterValue", "Length must be less than or equal to 64.")
    return None


@functools.cache
def _known(action: str) -> frozenset[str]:
    """Return the filters that botocore's model of a call describes."""
    shape = _model().operation_model(action).input_shape
    found = shape.members.get("Filters") if shape is not None else None
    text = found.documentation if found is not None else ""
    return frozenset(re.findall(r"<p> ?<code>([a-z0-9.-]+)</code> ?-", text))


@functools.cache
def _model() -> Any:
    return botocore.session.get_session().get_service_model("ec2")
