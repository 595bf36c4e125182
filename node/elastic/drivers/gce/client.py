"""The clients of Compute Engine's API, and what they raise.

The library is imported at the first call, because that takes seconds.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

READ_SECONDS = 60.0
"""How long Compute Engine may take to answer."""


class Clients(NamedTuple):
    """One client of each service that the driver uses."""

    instances: Any
    operations: Any
    regions: Any
    projects: Any


def google_clients(**options: Any) -> Clients:
    """Make clients with the machine's own credentials.

    Args:
        options: Options of each client's constructor.

    Raises:
        DefaultCredentialsError: The machine has no credentials.
    """
    import google.auth
    from google.cloud import compute_v1 as gce

    # The library warns when there are more threads than kept connections, which does no harm here.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

    if "credentials" not in options:
        # The credentials are looked up once, and not by each client.
        scopes = ["https://www.googleapis.com/auth/cloud-platform"]
        options["credentials"], _ = google.auth.default(scopes=scopes)
    return Clients(
        gce.InstancesClient(**options),
        gce.ZoneOperationsClient(**options),
        gce.RegionsClient(**options),
        gce.ProjectsClient(**options),
    )


def once(seconds: float = READ_SECONDS) -> dict[str, Any]:
    """Return the arguments of a call without retries: the launcher classifies errors and repeats calls.

    Args:
        seconds: The time limit of the call.
    """
    return {"retry": None, "timeout": seconds}


def refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions of the client: refusals of Compute Engine, and errors without an answer."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.protobuf.json_format import ParseError
    from requests import RequestException

    # ParseError is raised when a load balancer's page comes in place of an answer.
    return (GoogleAPIError, GoogleAuthError, ParseError, RequestException)
