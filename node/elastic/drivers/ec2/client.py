"""The client of EC2's API: the calls that the driver makes, and what it raises.

A call is sent once. The launcher classifies errors and repeats calls. What the client raises has the names of
botocore's exceptions, which users find explained.
"""

from __future__ import annotations

import functools
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException, responses
from typing import Any, NoReturn, TypeVar

from node.aws import xml_answers
from node.aws.api import Service, domain, override
from node.aws.imds import Metadata
from node.aws.signatures import Credentials
from node.aws.xml_answers import AnswerError, Shape
from node.elastic.drivers.ec2 import answers
from node.elastic.drivers.ec2.answers import Event, Instance, SpotRequest, TemplateVersion
from node.system import http_client as http
from node.system.cloud_api import ServiceError, UnreachableError

T = TypeVar("T")

VERSION = "2016-11-15"
"""The version of EC2's API."""
CONNECT_SECONDS = 5.0
"""How long a connection to EC2 may take."""
READ_SECONDS = 60.0
"""How long EC2 may take to answer: a launch of hundreds of instances is answered only when all are placed."""
PAGE = 1000
"""The most results of a page. Without a page size EC2 decides how many a page has, and may time out."""
_HEADERS = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
_NAMES = {
    "Filters": "Filter",
    "Groups": "SecurityGroupId",
    "InstanceIds": "InstanceId",
    "NetworkInterfaces": "NetworkInterface",
    "TagSpecifications": "TagSpecification",
    "Tags": "Tag",
    "Values": "Value",
    "Versions": "LaunchTemplateVersion",
}
"""Lists of EC2's API reference -> their names in a request."""


class CallError(Exception):
    """A call without success."""


class RefusedError(CallError):
    """EC2 refuses a call.

    Args:
        code: EC2's code; the HTTP status where a server on the way has answered in place of EC2.
        message: EC2's words.
        status: The HTTP status.

    Attributes:
        response: The same in the form of botocore's ClientError.
    """

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(message or code)
        self.response: dict[str, dict[str, Any]] = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


class NoAnswerError(CallError):
    """There is no answer, or none that can be read. Whether EC2 has done its work is unknown."""


class EndpointConnectionError(NoAnswerError):
    """No connection to EC2 could be made."""


class ConnectTimeoutError(NoAnswerError):
    """No connection to EC2 could be made in time."""


class ProxyConnectionError(NoAnswerError):
    """The proxy does not connect to EC2."""


class SSLError(NoAnswerError):
    """The connection is not safe: the certificate of EC2's address is not trusted."""


class ReadTimeoutError(NoAnswerError):
    """EC2 has not answered in time."""


class ConnectionClosedError(NoAnswerError):
    """The connection has ended before the end of the answer."""


class ResponseParserError(NoAnswerError):
    """The answer cannot be read, as a page of a load balancer's."""


class NoCredentialsError(NoAnswerError):
    """The machine's role has given no credentials, so that the call was not sent."""


class PartialCredentialsError(CallError):
    """The environment has a part of the credentials only."""


class Ec2Client:
    """A client of EC2 in one region. It may be used in several threads.

    Args:
        region: The region; if it is empty, that of this machine.
        endpoint: EC2's URL. `None` means the environment's (AWS_ENDPOINT_URL_EC2), or the region's own.
        credentials: Returns the credentials; by default those of the environment, or of the machine's role.
        read_seconds: How long EC2 may take to answer.
    """

    def __init__(
        self,
        region: str,
        endpoint: str | None = None,
        credentials: Callable[[], Credentials] | None = None,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._region = region
        self._endpoint = endpoint
        self._metadata = Metadata()
        self._credentials = credentials or self._own_credentials
        self._read_seconds = read_seconds

    def run_instances(self, request: Mapping[str, Any]) -> list[Instance]:
        """Launch instances.

        Args:
            request: The parameters, by the names of EC2's API reference.

        Raises:
            CallError: EC2 refuses, or does not answer.
        """
        return self._call("RunInstances", request, answers.LAUNCH, answers.launched)

    def instances(self, tags: Mapping[str, str]) -> Iterator[Instance]:
        """Yield all instances with these tags.

        Raises:
            CallError: EC2 refuses, or does not answer. What was yielded before is only a part.
        """
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]
        parameters = {"Filters": filters, "MaxResults": PAGE}
        for page in self._pages("DescribeInstances", parameters, answers.INSTANCES, answers.instances):
            yield from page

    def terminate_instances(self, ids: Sequence[str]) -> None:
        """Terminate instances: all of them, or none if EC2 refuses one.

        Raises:
            CallError: EC2 refuses, or does not answer.
        """
        self._call("TerminateInstances", {"InstanceIds": ids}, {}, lambda _answer: None)

    def newest_version(self, template: str) -> TemplateVersion:
        """Return the newest version of a launch template.

        Raises:
            CallError: EC2 refuses, or does not answer.
        """
        parameters = {"LaunchTemplateId": template, "Versions": ["$Latest"]}
        shape = answers.TEMPLATE_VERSIONS
        return self._call("DescribeLaunchTemplateVersions", parameters, shape, answers.template_version)

    def events(self, codes: Sequence[str]) -> Iterator[Event]:
        """Yield the scheduled events of the account's instances that may have one of these codes.

        Raises:
            CallError: EC2 refuses, or does not answer.
        """
        parameters = {"Filters": [{"Name": "event.code", "Values": codes}], "MaxResults": PAGE}
        for page in self._pages("DescribeInstanceStatus", parameters, answers.STATUSES, answers.events):
            yield from page

    def spot_requests(self, codes: Sequence[str]) -> Iterator[SpotRequest]:
        """Yield the account's spot requests whose status has one of these codes.

        Raises:
            CallError: EC2 refuses, or does not answer.
        """
        parameters = {"Filters": [{"Name": "status-code", "Values": codes}], "MaxResults": PAGE}
        action, shape = "DescribeSpotInstanceRequests", answers.SPOT_REQUESTS
        for page in self._pages(action, parameters, shape, answers.spot_requests):
            yield from page

    def network_nodes(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return instance -> its network nodes, the widest first. A page size may not stand beside ids.

        Raises:
            CallError: EC2 refuses, or does not answer.
        """
        found: dict[str, tuple[str, ...]] = {}
        action, shape = "DescribeInstanceTopology", answers.TOPOLOGY
        for page in self._pages(action, {"InstanceIds": ids}, shape, answers.network_nodes):
            found |= page
        return found

    def _pages(
        self,
        action: str,
        parameters: Mapping[str, Any],
        shape: Mapping[str, Shape],
        read: Callable[[Mapping[str, Any]], T],
    ) -> Iterator[T]:
        """Yield what each page has. No page is left out, and none is asked for twice."""
        tokens: set[str] = set()
        more: dict[str, str] = {}
        whole = {**shape, "nextToken": None}
        while True:
            page, token = self._call(
                action, {**parameters, **more}, whole, lambda found: (read(found), found.get("nextToken"))
            )
            yield page
            if not token:
                return
            if token in tokens:
                raise ResponseParserError(f"{action} has answered twice that page {token} is the next one")
            tokens.add(token)
            more = {"NextToken": token}

    def _call(
        self,
        action: str,
        parameters: Mapping[str, Any],
        shape: Mapping[str, Shape],
        read: Callable[[Mapping[str, Any]], T],
    ) -> T:
        """Make one call and return what `read` makes of its answer."""
        body = urllib.parse.urlencode([("Action", action), ("Version", VERSION), *flat(parameters)])
        answer = self._sent(body.encode())
        if answer.status >= 300:
            raise _refusal(answer)
        try:
            return read(xml_answers.read(answer.body, f"{action}Response", shape))
        except AnswerError as error:
            raise ResponseParserError(f"{action}: {error}") from error

    def _sent(self, body: bytes) -> http.Answer:
        service = Service("ec2", self._own_region, self._credentials)
        try:
            return service.call(
                "POST", self._url(), _HEADERS, body,
                attempts=1, timeout=self._read_seconds, connect_timeout=CONNECT_SECONDS,
            )  # fmt: skip
        except UnreachableError as error:
            kind, proxy = _kind_of(error.__cause__), _proxy_of(self._url())
            if kind is EndpointConnectionError and proxy:
                raise ProxyConnectionError(f"{error}; the proxy is {proxy}") from error
            raise kind(str(error)) from error

    def _url(self) -> str:
        own = f"https://ec2.{self._own_region}.{domain(self._own_region)}"
        return f"{(self._endpoint or override('EC2') or own).rstrip('/')}/"

    @functools.cached_property
    def _own_region(self) -> str:
        if self._region:
            return self._region
        try:
            return self._metadata.region()
        except ServiceError as error:
            _no_credentials(error)

    def _own_credentials(self) -> Credentials:
        """Return the credentials of the environment, or of the machine's role, which are renewed in time."""
        key, secret = (os.environ.get(f"AWS_{name}") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
        if key and secret:
            return Credentials(key, secret, os.environ.get("AWS_SESSION_TOKEN") or None)
        if key or secret:
            missing = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
            raise PartialCredentialsError(f"the environment has a part of the credentials: no {missing}")
        try:
            return self._metadata.credentials()
        except (ServiceError, ValueError, KeyError) as error:
            _no_credentials(error)


def flat(parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return parameters as EC2 takes them: `Filter.1.Value.1`. Empty lists are left out."""
    return [*_flat("", parameters)]


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            part = _NAMES.get(str(key), str(key))
            yield from _flat(f"{name}.{part}" if name else part, inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value, 1):
            yield from _flat(f"{name}.{number}", inner)
    else:
        yield name, str(value).lower() if isinstance(value, bool) else str(value)


def _refusal(answer: http.Answer) -> CallError:
    """Return the error of an answer without success."""
    try:
        error = xml_answers.read(answer.body, "Response", answers.ERRORS)["Errors"]["Error"]
        return RefusedError(error["Code"], error.get("Message", ""), answer.status)
    except (AnswerError, KeyError) as problem:
        # It comes from a server on the way. One that is overloaded says so by its status.
        if answer.status >= 500:
            words = responses.get(answer.status, "")
            return RefusedError(str(answer.status), words, answer.status)
        return ResponseParserError(f"HTTP status {answer.status}, and no error of EC2's: {problem}")


def _kind_of(cause: BaseException | None) -> type[NoAnswerError]:
    """Return the class of what has kept an answer from coming."""
    if isinstance(cause, urllib.error.URLError):  # before the request was sent whole
        reason = cause.reason
        if isinstance(reason, TimeoutError):
            return ConnectTimeoutError
        if isinstance(reason, ssl.SSLError):
            return SSLError
        if isinstance(reason, ConnectionResetError | BrokenPipeError | HTTPException):
            return ConnectionClosedError
        return EndpointConnectionError
    if isinstance(cause, TimeoutError):
        return ReadTimeoutError
    return SSLError if isinstance(cause, ssl.SSLError) else ConnectionClosedError


def _proxy_of(url: str) -> str | None:
    """Return the host and port of the proxy that the environment sets for a URL."""
    parts = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc):
        return None
    proxy = urllib.request.getproxies().get(parts.scheme)
    return urllib.parse.urlsplit(proxy).netloc.rpartition("@")[2] if proxy else None


def _no_credentials(error: Exception) -> NoReturn:
    raise NoCredentialsError(f"the machine's role gives no credentials: {error}") from error
