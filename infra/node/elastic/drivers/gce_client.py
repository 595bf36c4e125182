"""The clients of Compute Engine's API, and what they raise. Imported at the first call: it takes seconds."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

READ_SECONDS = 60.0


class Clients(NamedTuple):
    """One of each service that the driver uses."""

    instances: Any
    operations: Any
    regions: Any
    projects: Any


def google_clients(**options: Any) -> Clients:
    """Clients with the machine's own credentials.

    Args:
        options: of each client's constructor.

    Raises:
        DefaultCredentialsError: the machine has none.
    """
    import google.auth
    from google.cloud import compute_v1 as gce

    # More threads than kept connections are fine, and not worth a line each.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

    if "credentials" not in options:
        # Once, and not by each client.
        scopes = ["https://www.googleapis.com/auth/cloud-platform"]
        options["credentials"], _ = google.auth.default(scopes=scopes)
    return Clients(
        gce.InstancesClient(**options),
        gce.ZoneOperationsClient(**options),
        gce.RegionsClient(**options),
        gce.ProjectsClient(**options),
    )


def once(seconds: float = READ_SECONDS) -> dict[str, Any]:
    """The arguments of a call that is made once: what is busy is classified and asked again by the launcher.

    Args:
        seconds: until there is an answer.
    """
    return {"retry": None, "timeout": seconds}


def refusals() -> tuple[type[Exception], ...]:
    """What the client raises: an answer of Compute Engine's, or its own word that there was none."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.protobuf.json_format import ParseError
    from requests import RequestException

    # The last but one: a load balancer's page in place of an answer.
    return (GoogleAPIError, GoogleAuthError, ParseError, RequestException)
