"""Launches on EC2: whole groups, best-effort ones, one subnet after another, each call at most once.

RunInstances and not CreateFleet. MinCount = MaxCount is all-or-nothing by EC2 itself, the instances' numbers
in their launch (`ami-launch-index`) name the nodes without a call a node, and errors come as errors; of a
fleet neither the numbers nor the absence of half a fleet is promised. What a fleet adds, several subnets in
one call, is here a loop, which costs a call only where a zone is full.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.node.elastic.driver import LaunchGroup, LaunchResult
from infra.node.elastic.drivers import ec2_names
from infra.node.elastic.drivers.ec2_errors import classify, code_of, failure_of, not_found, protected, words
from infra.node.elastic.errors import ErrorClass, Failure
from infra.node.elastic.pools import together
from infra.node.elastic.view import log
from infra.node.model import ClusterDesign
from infra.node.slurm.hostlist import fold
from infra.node.words import count

Place = tuple[str, str]
"""A zone and one of its subnets."""

CALL_NODES = 500
"""Instances of one RunInstances call, at most."""
TERMINATE_IDS = 1000
"""Instances of one TerminateInstances call, at most."""
ELSEWHERE = (ErrorClass.CAPACITY, ErrorClass.PLACEMENT)
"""Classes that another subnet may help against."""
_WEAK = (ErrorClass.CONFIG, ErrorClass.PLACEMENT)
"""Classes that say less of a partition than any other zone's, the weakest first."""
PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between tries, where giving up would waste machines that came already."""
TOKENS_USED = ("IdempotentInstanceTerminated", "IdempotentParameterMismatch")
"""The token belongs to a launch that is over: the wish needs another one."""
TEMPLATE_SECONDS = 60.0
"""For how long a template is remembered."""
WISH_SECONDS = 1800.0
"""By then no try of a wish follows another: six calls and their pauses, in each of several zones."""
_INTERFACE = (
    "AssociatePublicIpAddress", "DeleteOnTermination", "Description", "DeviceIndex", "Groups",
    "InterfaceType", "NetworkCardIndex",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Template:
    """A launch template's newest version.

    Attributes:
        interfaces: as a launch takes them, without subnets.
    """

    version: str
    interfaces: tuple[dict[str, Any], ...]


class Ec2Launches:
    """Args:
    client: the EC2 client; made at the first call.
    refusals: the exceptions that its calls raise.
    places: every zone's subnets, in the order of the tries.
    templates: partition -> launch template id.
    """

    def __init__(
        self,
        design: ClusterDesign,
        cluster: str,
        client: Callable[[], Any],
        refusals: Callable[[], tuple[type[Exception], ...]],
        places: Sequence[Place],
        templates: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._design = design
        self._cluster = cluster
        self._client = client
        self._refusals = refusals
        self._places = tuple(places)
        self._templates = templates
        self._sleep = sleep
        self._lock = threading.Lock()
        self._read: dict[str, tuple[float, _Template]] = {}
        self._attempts: dict[str, int] = {}
        self._wished: dict[str, tuple[float, _Template]] = {}

    def launch(self, group: LaunchGroup) -> LaunchResult:
        """In the group's zone, or without one in the first subnet that has room."""
        places = [place for place in self._places if group.zone in (None, place[0])]
        if group.partition not in self._templates:
            return _misfit(group, "NoTemplate", f"partition {group.partition} has no launch template")
        if not places:
            known = ", ".join(sorted({zone for zone, _ in self._places})) or "none"
            return _misfit(group, "NoSubnet", f"no subnet lies in zone {group.zone}; with one: {known}")
        launched: dict[str, str] = {}
        left = group.nodes
        causes: list[tuple[str | None, Failure]] = []
        for zone, subnet in places:
            attempt = self._whole if group.all_or_nothing else self._some
            made, failure = attempt(group, left, subnet)
            launched |= made
            left = tuple(node for node in left if node not in made)
            if failure is None:
                return LaunchResult(launched)
            causes.append((zone, failure))
            if failure.kind not in ELSEWHERE:
                break
        # The last cause gives the class: a zone that cannot be used must not hide that others are full.
        causes.sort(key=lambda cause: _WEAK.index(cause[1].kind) if cause[1].kind in _WEAK else len(_WEAK))
        return LaunchResult(launched, (together(causes, left),))

    def _whole(
        self, group: LaunchGroup, nodes: tuple[str, ...], subnet: str
    ) -> tuple[dict[str, str], Failure | None]:
        """All of them in one subnet, or none: what came before a call that fails is undone."""
        made: dict[str, str] = {}
        for call in ec2_names.calls(nodes, CALL_NODES):
            try:
                part = self._run(group, call, subnet, len(call), patient=bool(made))
            except self._refusals() as error:
                failure = failure_of(error, nodes)
            else:
                made |= part.launched
                if not part.failures:
                    continue
                failure = part.failures[0]
            self._undo(group, made)
            return {}, failure
        return made, None

    def _some(
        self, group: LaunchGroup, nodes: tuple[str, ...], subnet: str
    ) -> tuple[dict[str, str], Failure | None]:
        """As many as the subnet gives. EC2 does not say why it gave fewer, so the rest is asked for again."""
        made: dict[str, str] = {}
        for call in ec2_names.calls(nodes, CALL_NODES):
            rest, short = call, None
            for _ in range(2):
                try:
                    part = self._run(group, rest, subnet, 1, patient=bool(made))
                except self._refusals() as error:
                    return made, failure_of(error)
                made |= part.launched
                rest = tuple(node for node in rest if node not in made)
                short = part.failures[0] if part.failures else None
                if not rest:
                    break
            if short is not None:
                return made, short
        return made, None

    def _run(
        self, group: LaunchGroup, nodes: Sequence[str], subnet: str, least: int, *, patient: bool
    ) -> LaunchResult:
        """One RunInstances call.

        Args:
            nodes: in the order of `ec2_names.calls`.
            least: fewer are of no use.
            patient: ask a busy cloud again before giving up.

        Raises:
            ClientError, BotoCoreError: EC2 refuses, or does not answer.
        """
        pauses = list(PAUSES) if patient else []
        fresh_tokens = 3
        while True:
            try:
                answer = self._client().run_instances(**self._request(group, nodes, subnet, least))
            except self._refusals() as error:
                if code_of(error) in TOKENS_USED and fresh_tokens:
                    fresh_tokens -= 1
                    self._use_up(group)
                elif failure_of(error).kind is ErrorClass.THROTTLED and pauses:
                    self._sleep(pauses.pop(0))
                else:
                    raise
                continue
            return _result(nodes, answer["Instances"])

    def _request(self, group: LaunchGroup, nodes: Sequence[str], subnet: str, least: int) -> dict[str, Any]:
        partition, identity = self._design.partition(group.partition), self._templates[group.partition]
        template = self._template_of(group, identity)
        tags = {
            "Name": f"{self._cluster}-{partition.name}",
            ec2_names.CLUSTER: self._cluster,
            ec2_names.STACK: self._design.stack,
            ec2_names.ROLE: ec2_names.COMPUTE,
            ec2_names.PARTITION: partition.name,
            **ec2_names.tags_of(nodes),
        }
        kinds = ["instance", "volume", "network-interface"]
        if partition.spot:
            kinds.append("spot-instances-request")
        labels = [{"Key": key, "Value": value} for key, value in tags.items()]
        request = {
            "MinCount": least,
            "MaxCount": len(nodes),
            "LaunchTemplate": {"LaunchTemplateId": identity, "Version": template.version},
            "TagSpecifications": [{"ResourceType": kind, "Tags": labels} for kind in kinds],
        }
        # EC2 takes no subnet beside a template's interfaces: they are repeated, each with the subnet in it.
        if template.interfaces:
            request["NetworkInterfaces"] = [{**one, "SubnetId": subnet} for one in template.interfaces]
        else:
            request["SubnetId"] = subnet
        # All that is asked for is in the token, so that one token can never stand for two different requests.
        wish = [group.token, self._attempts.get(group.token, 0), request]
        token = hashlib.sha256(json.dumps(wish, sort_keys=True).encode()).hexdigest()
        return {**request, "ClientToken": token}

    def newest(self, partition: str) -> tuple[str, str] | None:
        """The launch template's id and version that nodes of a partition are made from now.

        Raises:
            one of the client's refusals.
        """
        identity = self._templates.get(partition)
        return None if identity is None else (identity, self._template(identity).version)

    def _template_of(self, group: LaunchGroup, identity: str) -> _Template:
        """The same for all tries of a wish: where an answer was lost, another request would launch twice."""
        now = time.monotonic()
        with self._lock:
            self._wished = {token: one for token, one in self._wished.items() if now - one[0] < WISH_SECONDS}
            known = self._wished.get(group.token)
        if known is not None:
            return known[1]
        template = self._template(identity)
        with self._lock:
            return self._wished.setdefault(group.token, (now, template))[1]

    def _template(self, identity: str) -> _Template:
        """The newest version, by its number."""
        now = time.monotonic()
        with self._lock:
            at, known = self._read.get(identity, (0.0, None))
        if known is not None and now - at < TEMPLATE_SECONDS:
            return known
        answer = self._client().describe_launch_template_versions(
            LaunchTemplateId=identity, Versions=["$Latest"]
        )
        (newest,) = answer["LaunchTemplateVersions"]
        interfaces = newest["LaunchTemplateData"].get("NetworkInterfaces", [])
        template = _Template(
            str(newest["VersionNumber"]),
            tuple({key: one[key] for key in _INTERFACE if key in one} for one in interfaces),
        )
        with self._lock:
            self._read[identity] = (now, template)
        return template

    def _undo(self, group: LaunchGroup, made: Mapping[str, str]) -> None:
        """End what came of a group that cannot be whole. What is left is the reconciler's: it has no user."""
        if not made:
            return
        self._use_up(group)
        left = set(made.values())
        for pause in (*PAUSES, None):
            try:
                # So young that EC2 may not know them yet: not found does not mean gone.
                left = end(self._client(), self._refusals(), left)
            except self._refusals() as error:
                log(f"{fold(made)}: not ended yet: {failure_of(error).sentence()}")
            if not left or pause is None:
                return
            self._sleep(pause)

    def _use_up(self, group: LaunchGroup) -> None:
        """The same wish again must be another launch: EC2 would answer with the machines that have ended."""
        with self._lock:
            self._attempts[group.token] = self._attempts.get(group.token, 0) + 1


def end(client: Any, refusals: tuple[type[Exception], ...], ids: Iterable[str]) -> set[str]:
    """Terminate instances, without those that EC2 does not know or may not end: it names them.

    EC2 ends none of a call's instances where it refuses one: it would keep all others from their end. Each
    call has as many as EC2 takes, and all are made, also where one of them fails.

    Returns:
        The unknown ones.

    Raises:
        ClientError, BotoCoreError: EC2 refuses, or does not answer; or somebody has protected some of them
            from being ended, and the others are ended.
    """
    wanted, unknown = sorted(set(ids)), set[str]()
    failed: Exception | None = None
    for first in range(0, len(wanted), TERMINATE_IDS):
        try:
            unknown |= _end(client, refusals, wanted[first : first + TERMINATE_IDS])
        except refusals as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return unknown


def _end(client: Any, refusals: tuple[type[Exception], ...], ids: Sequence[str]) -> set[str]:
    left, unknown = list(ids), set[str]()
    kept: Exception | None = None
    while left:
        try:
            client.terminate_instances(InstanceIds=left)
            break
        except refusals as error:
            gone, spared = not_found(error) & set(left), protected(error) & set(left)
            if not gone and not spared:
                raise
            kept = kept or (error if spared else None)
            unknown |= gone
            left = [identity for identity in left if identity not in gone | spared]
    if kept is not None:
        raise kept
    return unknown


def _result(nodes: Sequence[str], instances: list[dict[str, Any]]) -> LaunchResult:
    """The instances of one answer: some may be missing, or have ended before it was sent."""
    launched, reasons = {}, []
    for instance in instances:
        if instance["State"]["Name"] in ("pending", "running"):
            launched[nodes[instance["AmiLaunchIndex"]]] = instance["InstanceId"]
        elif instance.get("StateReason"):
            reasons.append(instance["StateReason"])
    lost = tuple(node for node in nodes if node not in launched)
    if not lost:
        return LaunchResult(launched)
    why = reasons[0] if reasons else {}
    code = why.get("Code") or "InsufficientInstanceCapacity"
    message = why.get("Message") or f"EC2 gave {len(launched)} of {count(len(nodes), 'machine')}"
    return LaunchResult(launched, (Failure(lost, classify(code, None, message), code, words(message)),))


def _misfit(group: LaunchGroup, code: str, message: str) -> LaunchResult:
    return LaunchResult({}, (Failure(group.nodes, ErrorClass.CONFIG, code, message),))
