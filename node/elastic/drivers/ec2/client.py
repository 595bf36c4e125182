"""The client of EC2's API, and what it raises.

The library is imported at the first call, because that takes seconds.
"""

from __future__ import annotations

from typing import Any

CONNECT_SECONDS = 5.0
"""How long a connection to EC2 may take."""
READ_SECONDS = 60.0
"""How long EC2 may take to answer: a launch of hundreds of instances is answered only when all are placed."""


def aws_client(service: str, region: str, **options: Any) -> Any:
    """Make a client of boto3 that does not retry: the launcher classifies errors and repeats calls.

    Args:
        service: The service's name, such as `ec2`.
        region: The region.
        options: Further options of `boto3.client`.
    """
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        tcp_keepalive=True,
    )
    # Each client has its own session: the default session is shared and not safe to use in several threads.
    return boto3.session.Session().client(service, region_name=region, config=config, **options)


def refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions of the client: EC2's refusals, and its own errors if there was no answer."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    # ResponseParserError is neither: it is raised when a load balancer's page comes in place of an answer.
    return (ClientError, BotoCoreError, ResponseParserError)
