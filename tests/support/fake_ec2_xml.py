"""EC2's answers as text: those of the layer before moto, and those that it changes."""

from __future__ import annotations

import datetime
import re
from xml.etree import ElementTree
from xml.sax.saxutils import escape

Answer = tuple[int, bytes]
"""HTTP status and body."""

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"


def error(code: str, message: str, status: int = 400) -> Answer:
    text = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    return status, f"<Response><Errors>{text}</Errors><RequestID>r-1</RequestID></Response>".encode()


def code(answer: Answer) -> str | None:
    """Return an error's code; `None` for an answer that is no error."""
    found = re.search(rb"<Errors><Error><Code>([^<]*)</Code>", answer[1]) if answer[0] != 200 else None
    return found[1].decode() if found else None


def ids(content: bytes) -> list[str]:
    """Return the instances of an answer, in its order."""
    return re.findall(r"<instanceId>(i-[0-9a-f]+)</instanceId>", content.decode())


def without(content: bytes, hidden: set[str]) -> bytes:
    """Return a DescribeInstances answer without some instances."""
    if not hidden:
        return content
    root, space = _parse(content)
    for instances in root.iter(f"{space}instancesSet"):
        for item in list(instances):
            if item.findtext(f"{space}instanceId") in hidden:
                instances.remove(item)
    return ElementTree.tostring(root, default_namespace=space.strip("{}"))


def ended(content: bytes, dead: list[str]) -> bytes:
    """Return a RunInstances answer in which some instances have ended already."""
    if not dead:
        return content
    root, space = _parse(content)
    for item in root.iter(f"{space}item"):
        if item.findtext(f"{space}instanceId") in dead:
            state = item.find(f"{space}instanceState/{space}name")
            assert state is not None
            state.text = "terminated"
            reason = item.find(f"{space}stateReason")
            if reason is None:
                reason = ElementTree.SubElement(item, f"{space}stateReason")
            reason.clear()
            ElementTree.SubElement(reason, f"{space}code").text = "Client.VolumeLimitExceeded"
            ElementTree.SubElement(reason, f"{space}message").text = "Volume limit exceeded"
    return ElementTree.tostring(root, default_namespace=space.strip("{}"))


def events(known: dict[str, tuple[str, float, str]], wanted: set[str]) -> list[str]:
    """Return a DescribeInstanceStatus answer: the instances with an event of the wanted codes."""
    return [
        f"<item><instanceId>{identity}</instanceId><eventsSet><item><code>{code}</code>"
        f"<description>{escape(text)}</description><notBefore>{_time(at)}</notBefore></item></eventsSet></item>"
        for identity, (code, at, text) in known.items()
        if code in wanted
    ]


def interruptions(known: dict[str, float], wanted: set[str]) -> list[str]:
    """Return a DescribeSpotInstanceRequests answer: those whose instance is marked for termination."""
    return [
        f"<item><spotInstanceRequestId>sir-{n}</spotInstanceRequestId><instanceId>{identity}</instanceId>"
        f"<state>active</state><status><code>marked-for-termination</code><updateTime>{_time(at)}</updateTime>"
        "<message>no capacity</message></status></item>"
        for n, (identity, at) in enumerate(known.items())
        if "marked-for-termination" in wanted
    ]


def network(identity: str, nodes: tuple[str, ...]) -> str:
    """Return an instance of a DescribeInstanceTopology answer, with the names of botocore's model."""
    path = "".join(f"<item>{node}</item>" for node in nodes)
    return f"<item><instanceId>{identity}</instanceId><networkNodeSet>{path}</networkNodeSet></item>"


def page(response: str, name: str, items: list[str], size: int, token: str | None) -> Answer:
    """Return one page of a list, from where the last page ended."""
    if token is not None and not re.fullmatch(r"token-\d+", token):
        return error("InvalidNextToken", f"The token '{token}' is invalid")
    first = int((token or "token-0").removeprefix("token-"))
    after = f"token-{first + size}" if first + size < len(items) else None
    return listing(response, name, items[first : first + size], after)


def filters(params: dict[str, str]) -> dict[str, list[str]]:
    """Return a request's `Filter.1.Name`, `Filter.1.Value.1`, …"""
    found: dict[str, list[str]] = {}
    for key, name in params.items():
        if match := re.fullmatch(r"Filter\.(\d+)\.Name", key):
            head = f"Filter.{match[1]}.Value."
            found[name] = [value for other, value in params.items() if other.startswith(head)]
    return found


def listing(response: str, name: str, items: list[str], token: str | None = None) -> Answer:
    """Return an answer that is one set, or a page of it: `token` leads to the next page."""
    inner = f"<requestId>r-1</requestId><{name}>{''.join(items)}</{name}>"
    inner += f"<nextToken>{token}</nextToken>" if token else ""
    return 200, f'<{response} xmlns="{NAMESPACE}">{inner}</{response}>'.encode()


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _parse(content: bytes) -> tuple[ElementTree.Element, str]:
    root = ElementTree.fromstring(content)
    match = re.match(r"\{.*\}", root.tag)
    return root, match[0] if match else ""
