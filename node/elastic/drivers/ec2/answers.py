"""What EC2 answers: the fields that the driver needs, by the names of EC2's API reference.

botocore reads every field of an answer. For the driver's pass over a thousand instances that was two thirds
of its time, and its description of EC2's calls three quarters of the daemon's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from node.aws.xml_answers import AnswerError, Shape

INSTANCE: Shape = {
    "instanceId": None,
    "instanceState": {"name": None},
    "stateReason": {"code": None, "message": None},
    "launchTime": None,
    "amiLaunchIndex": None,
    "placement": {"availabilityZone": None},
    "privateIpAddress": None,
    "networkInterfaceSet": [{"privateIpAddressesSet": [{"privateIpAddress": None}]}],
    "tagSet": [{"key": None, "value": None}],
}
INSTANCES: Mapping[str, Shape] = {"reservationSet": [{"instancesSet": [INSTANCE]}]}
LAUNCH: Mapping[str, Shape] = {"instancesSet": [INSTANCE]}
STATUSES: Mapping[str, Shape] = {
    "instanceStatusSet": [
        {"instanceId": None, "eventsSet": [{"code": None, "description": None, "notBefore": None}]}
    ]
}
SPOT_REQUESTS: Mapping[str, Shape] = {
    "spotInstanceRequestSet": [{"instanceId": None, "status": {"code": None, "updateTime": None}}]
}
TOPOLOGY: Mapping[str, Shape] = {"instanceSet": [{"instanceId": None, "networkNodeSet": [None]}]}
TEMPLATE_VERSIONS: Mapping[str, Shape] = {
    "launchTemplateVersionSet": [
        {
            "versionNumber": None,
            "launchTemplateData": {
                "networkInterfaceSet": [
                    {
                        "associatePublicIpAddress": None,
                        "deleteOnTermination": None,
                        "description": None,
                        "deviceIndex": None,
                        "groupSet": [None],
                        "interfaceType": None,
                        "networkCardIndex": None,
                    }
                ]
            },
        }
    ]
}
ERRORS: Mapping[str, Shape] = {"Errors": {"Error": {"Code": None, "Message": None}}}


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance, as a listing or the answer to its launch has it.

    Attributes:
        id: Its id.
        state: pending, running, stopping, stopped, shutting-down or terminated.
        launched: When EC2 accepted the launch, in seconds since the epoch (UTC).
        launch_index: Its number in its launch; `None` where the answer has none.
        reason_code: Why it is in its state; empty if EC2 does not say.
        reason: The same in EC2's words.
        zone: Its availability zone.
        addresses: Its private IPv4 addresses, the first one of its first interface before the others.
        tags: Its tags.
    """

    id: str
    state: str
    launched: float
    launch_index: int | None
    reason_code: str
    reason: str
    zone: str | None
    addresses: tuple[str, ...]
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Event:
    """A scheduled event of an instance.

    Attributes:
        instance: The instance's id.
        code: Its kind, such as `instance-stop`.
        description: EC2's words, which begin with `[Completed]` or `[Canceled]` if the event is over.
        at: When it begins, in seconds since the epoch (UTC).
    """

    instance: str
    code: str
    description: str
    at: float


@dataclass(frozen=True, slots=True)
class SpotRequest:
    """A spot request that an instance was launched for.

    Attributes:
        instance: The instance's id.
        code: The code of its status, such as `marked-for-termination`.
        updated: Since when it has this status, in seconds since the epoch (UTC).
    """

    instance: str
    code: str
    updated: float


@dataclass(frozen=True, slots=True)
class TemplateVersion:
    """A version of a launch template.

    Attributes:
        number: The version's number.
        interfaces: Its network interfaces, in the form of a launch request.
    """

    number: str
    interfaces: tuple[dict[str, Any], ...]


def instances(answer: Mapping[str, Any]) -> list[Instance]:
    """Return the instances of a page of a listing.

    Raises:
        AnswerError: The answer lacks what each has.
    """
    reservations = _needed(answer, "reservationSet")
    return [instance for reservation in reservations for instance in launched(reservation)]


def launched(answer: Mapping[str, Any]) -> list[Instance]:
    """Return the instances that a launch has made, or those of a reservation.

    Raises:
        AnswerError: The answer lacks what each has.
    """
    return [_instance(item) for item in _needed(answer, "instancesSet")]


def _instance(item: Mapping[str, Any]) -> Instance:
    index, reason = item.get("amiLaunchIndex"), item.get("stateReason", {})
    return Instance(
        _needed(item, "instanceId"),
        _needed(_needed(item, "instanceState"), "name"),
        _converted(item, "launchTime", _seconds),
        None if index is None else _converted(item, "amiLaunchIndex", int),
        reason.get("code", ""),
        reason.get("message", ""),
        item.get("placement", {}).get("availabilityZone"),
        _addresses(item),
        {tag["key"]: tag.get("value", "") for tag in item.get("tagSet", ()) if "key" in tag},
    )


def _addresses(item: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the private addresses of an instance. All its interfaces are in one VPC."""
    others = [
        address.get("privateIpAddress")
        for interface in item.get("networkInterfaceSet", ())
        for address in interface.get("privateIpAddressesSet", ())
    ]
    return tuple(dict.fromkeys(filter(None, [item.get("privateIpAddress"), *others])))


def events(answer: Mapping[str, Any]) -> list[Event]:
    """Return the events of a page of DescribeInstanceStatus.

    Raises:
        AnswerError: The answer lacks what each has.
    """
    return [
        Event(
            _needed(status, "instanceId"),
            _needed(event, "code"),
            event.get("description", ""),
            _converted(event, "notBefore", _seconds),
        )
        for status in _needed(answer, "instanceStatusSet")
        for event in status.get("eventsSet", ())
    ]


def spot_requests(answer: Mapping[str, Any]) -> list[SpotRequest]:
    """Return those spot requests of a page of DescribeSpotInstanceRequests that have an instance.

    Raises:
        AnswerError: The answer lacks what each has.
    """
    return [
        SpotRequest(request["instanceId"], status.get("code", ""), _converted(status, "updateTime", _seconds))
        for request in _needed(answer, "spotInstanceRequestSet")
        if "instanceId" in request and (status := request.get("status"))
    ]


def network_nodes(answer: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return instance -> its network nodes, the widest first, of a page of DescribeInstanceTopology.

    Raises:
        AnswerError: The answer lacks what each has.
    """
    return {
        _needed(item, "instanceId"): tuple(item.get("networkNodeSet", ()))
        for item in _needed(answer, "instanceSet")
    }


def template_version(answer: Mapping[str, Any]) -> TemplateVersion:
    """Return the one version that an answer of DescribeLaunchTemplateVersions has.

    Raises:
        AnswerError: The answer has none, or several, or lacks what a version has.
    """
    versions = _needed(answer, "launchTemplateVersionSet")
    if len(versions) != 1:
        raise AnswerError(f"the answer has {len(versions)} versions of the launch template in place of one")
    interfaces = _needed(versions[0], "launchTemplateData").get("networkInterfaceSet", ())
    return TemplateVersion(_needed(versions[0], "versionNumber"), tuple(map(_interface, interfaces)))


_KINDS: Mapping[str, Callable[[str], Any]] = {
    "associatePublicIpAddress": lambda text: text == "true",
    "deleteOnTermination": lambda text: text == "true",
    "deviceIndex": int,
    "networkCardIndex": int,
}


def _interface(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an interface of a template in the form of a launch request."""
    found = {}
    for name in item:
        if name == "groupSet":
            found["Groups"] = list(item[name])
        else:
            found[name[0].upper() + name[1:]] = _converted(item, name, _KINDS.get(name, str))
    return found


def _needed(item: Mapping[str, Any], name: str) -> Any:
    try:
        return item[name]
    except KeyError:
        raise AnswerError(f"the answer lacks {name}") from None


def _converted(item: Mapping[str, Any], name: str, to: Callable[[str], Any]) -> Any:
    text = _needed(item, name)
    try:
        return to(text)
    except ValueError:
        raise AnswerError(f"the answer has a {name} of {text!r}") from None


def _seconds(text: str) -> float:
    """Convert `2026-11-21T18:00:00.000Z` to seconds since the epoch."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
