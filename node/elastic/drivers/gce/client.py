"""Compute Engine's REST API of one project, and what its calls raise.

This is plain JSON over kept connections, with the machine's own token: Google's client library takes 130 MiB
and seconds to import, and reads each answer into objects of which the driver needs a few fields. Lists ask
for these fields alone.

https://cloud.google.com/compute/docs/reference/rest/v1 has the methods and the fields.
"""

from __future__ import annotations

import json
import ssl
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from node.gcp.api import Token
from node.gcp.metadata import Metadata
from node.system.cloud_api import ServiceError

ENDPOINT = "https://compute.googleapis.com/compute/v1"
READ_SECONDS = 60.0
"""How long Compute Engine may take to answer."""
PAGE = 500
"""The largest number of results of one page."""
KEPT_CONNECTIONS = 48
"""As many as the driver's threads: parallel launches, deletes and lists."""
INSTANCE = (
    "id,name,status,statusMessage,creationTimestamp,labels,networkInterfaces/networkIP,"
    "scheduling/onHostMaintenance,resourceStatus/upcomingMaintenance/windowStartTime"
)
"""The fields of an instance that a listing reads, in the form of the parameter `fields`."""
PLACE = "id,name,resourceStatus/physicalHostTopology(cluster,block,subblock)"
OPERATION = (
    "name,operationType,targetLink,targetId,status,user,insertTime,operationGroupId,"
    "error/errors(code,message),httpErrorStatusCode,httpErrorMessage"
)
NO_ANSWER = "NoAnswer"

Resource = Mapping[str, Any]
"""A resource or an answer of the API as JSON. Fields without a value are left out."""


class CallError(Exception):
    """A call failed. The message is Compute Engine's, or says why no answer came.

    Attributes:
        code: Compute Engine's reason, such as `rateLimitExceeded`; `NO_ANSWER` if none came.
        status: The HTTP status; `None` means that no answer came, or another one than Compute Engine's.
    """

    def __init__(self, message: str, code: str = NO_ANSWER, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class TokenError(CallError):
    """The machine's metadata server gave no token. `status` is that server's."""


class Compute:
    """The API. It may be called from several threads. No call is repeated: the launcher classifies errors.

    Args:
        project: The project.
        token: Returns an access token; `None` means that of the machine's service account.
        endpoint: The API's URL.
    """

    def __init__(self, project: str, token: Token | None = None, endpoint: str = ENDPOINT) -> None:
        self.project = project
        self._token = token or Metadata().token
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._connections: Any = None

    def instances(self, zone: str, wanted: str, fields: str = INSTANCE) -> Iterator[Resource]:
        """Yield the instances of a zone, all pages.

        Args:
            zone: The zone.
            wanted: Which ones, as a filter of the API.
            fields: The fields of each.
        """
        return self._items(self._zone(zone, "instances"), fields, filter=wanted)

    def instance(self, zone: str, name: str) -> Resource:
        """Return one instance's id, status and labels."""
        return self._call("GET", self._zone(zone, "instances", name), {"fields": "id,status,labels"})

    def zones_with(self, wanted: str) -> set[str]:
        """Return the zones of the world that have an instance of a filter.

        If any zone does not answer, the call fails.
        """
        pages = self._pages(self._path("aggregated", "instances"), {"filter": wanted})
        return {
            scope.rpartition("/")[2]
            for page in pages
            for scope, found in page.get("items", {}).items()
            if found.get("instances")
        }

    def bulk_insert(self, zone: str, body: Mapping[str, Any], request_id: str) -> Resource:
        """Begin to launch instances. Returns the operation."""
        path = self._zone(zone, "instances", "bulkInsert")
        return self._call("POST", path, {"requestId": request_id}, body)

    def delete(self, zone: str, name: str, request_id: str) -> Resource:
        """Begin to delete an instance. Returns the operation."""
        return self._call("DELETE", self._zone(zone, "instances", name), {"requestId": request_id})

    def operation(self, zone: str, name: str) -> Resource:
        """Return an operation of a zone."""
        return self._call("GET", self._zone(zone, "operations", name), {"fields": OPERATION})

    def wait(self, zone: str, name: str, seconds: float) -> Resource:
        """Return an operation when it is done, or earlier: Compute Engine waits two minutes at most.

        Args:
            zone: The zone.
            name: The operation's name.
            seconds: How long to wait for the answer.
        """
        path = self._zone(zone, "operations", name, "wait")
        return self._call("POST", path, {"fields": OPERATION}, seconds=seconds)

    def operations(self, zone: str, wanted: str = "") -> Iterator[Resource]:
        """Yield a zone's operations, the newest first, and read pages as they are needed.

        Args:
            zone: The zone.
            wanted: Which ones, as a filter of the API; empty means all.
        """
        some = {"filter": wanted} if wanted else {}
        return self._items(
            self._zone(zone, "operations"), OPERATION, orderBy="creationTimestamp desc", **some
        )

    def quotas(self, region: str | None = None) -> list[Resource]:
        """Return the quotas of a region; `None` means the project's own."""
        path = self._path() if region is None else self._path("regions", region)
        return list(self._call("GET", path, {"fields": "quotas(metric,limit,usage)"}).get("quotas", ()))

    # --- the calls -----------------------------------------------------------------------------------------

    def _path(self, *words: str) -> str:
        return "/".join(quote(word, safe=":") for word in ("projects", self.project, *words))

    def _zone(self, zone: str, *words: str) -> str:
        return self._path("zones", zone, *words)

    def _items(self, path: str, fields: str, **query: str) -> Iterator[Resource]:
        query["fields"] = f"items({fields}),nextPageToken"
        for page in self._pages(path, query):
            yield from page.get("items", ())

    def _pages(self, path: str, query: Mapping[str, str]) -> Iterator[Resource]:
        query = {**query, "maxResults": str(PAGE)}
        while True:
            page = self._call("GET", path, query)
            yield page
            token = page.get("nextPageToken")
            if not token:
                return
            if token == query.get("pageToken"):
                raise CallError("what answers is not Compute Engine: a page is followed by itself")
            query = {**query, "pageToken": token}

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        seconds: float = READ_SECONDS,
    ) -> Resource:
        """Return the answer to a call.

        Raises:
            CallError: Compute Engine refuses, or does not answer.
        """
        url = f"{self._endpoint}/{path}?{urlencode({**query, 'prettyPrint': 'false'})}"
        for fresh in (False, True):
            headers = {"Authorization": f"Bearer {self._access_token(fresh=fresh)}"}
            status, content = self._send(method, url, headers, body, seconds)
            if status != 401:
                break
        if status != 200:
            raise refusal(status, content)
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            # For example the page of a load balancer.
            raise CallError("what answers is not Compute Engine: no JSON object")
        return answer

    def _access_token(self, *, fresh: bool) -> str:
        try:
            return self._token(fresh=fresh)
        except ServiceError as error:
            raise TokenError(str(error), "NoToken", error.status or None) from error
        except (ValueError, KeyError, TypeError) as error:
            raise TokenError("the metadata server's token cannot be read", "NoToken") from error

    def _send(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: Mapping[str, Any] | None,
        seconds: float,
    ) -> tuple[int, bytes]:
        from urllib3.exceptions import HTTPError

        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._pool().urlopen(
                method, url, body=content, headers=headers, timeout=seconds, retries=False, redirect=False
            )
            return answer.status, answer.data
        except HTTPError as error:
            raise CallError(f"Compute Engine does not answer: {error}") from error

    def _pool(self) -> Any:
        with self._lock:
            if self._connections is None:
                self._connections = _connections(self._endpoint)
            return self._connections


def _connections(endpoint: str) -> Any:
    """Return a pool of connections to an address, through the environment's proxy if it names one."""
    import urllib3

    place = urlsplit(endpoint)
    proxies = {} if urllib.request.proxy_bypass(place.netloc) else urllib.request.getproxies()
    # One context for all: each would read the certificates of all authorities.
    context = ssl.create_default_context() if place.scheme == "https" else None
    options: dict[str, Any] = {"maxsize": KEPT_CONNECTIONS, "ssl_context": context}
    if proxy := proxies.get(place.scheme):
        return urllib3.ProxyManager(proxy, **options)
    return urllib3.PoolManager(**options)


def refusal(status: int, content: bytes) -> CallError:
    """Return the error of an answer that is no success.

    Its form is that of https://google.aip.dev/193 with the older list `errors`, whose first entry has Compute
    Engine's own reason. Any part may be missing.

    Args:
        status: The HTTP status.
        content: The body, which is Google's JSON, or anything that a proxy on the way has put there.
    """
    try:
        error = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError):
        error = None
    error = error if isinstance(error, dict) else {}
    errors = error.get("errors")
    first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    # `status` is one word for many reasons: PERMISSION_DENIED stands beside rateLimitExceeded.
    code = first.get("reason") or error.get("status") or f"HTTP{status}"
    message = first.get("message") or error.get("message") or f"HTTP status {status}"
    # A redirect is a proxy's: Compute Engine has none.
    return CallError(str(message), str(code), status if status >= 400 else None)
