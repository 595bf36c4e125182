"""moto's S3 and Secrets Manager on loopback. Every call is recorded as the question that IAM gets."""

from __future__ import annotations

import io
import json
import re
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.test import run_wsgi_app

from tests.support.fake_ec2_iam import Question

ENGINEER = "ENGINEER"
"""The access key of the engineer who makes the cluster."""
SIGNED = re.compile(r"Credential=(\w+)/\d+/[\w-]+/(\w+)/aws4_request")


@dataclass
class RecordedAws:
    """The two services.

    Attributes:
        asked: the questions to IAM, with the key that signed each call. EC2's calls are not recorded.
        permits: IAM's answer: whether a key may make a call.
    """

    url: str = ""
    asked: list[tuple[str, Question]] = field(default_factory=list)
    permits: Callable[[str, Question], bool] = lambda _key, _question: True
    _moto: Any = field(default_factory=lambda: DomainDispatcherApplication(create_backend_app))

    def of(self, key: str) -> list[Question]:
        """Return the questions about one key's calls, in order and without repetitions."""
        found: list[Question] = []
        for who, question in self.asked:
            if who == key and question not in found:
                found.append(question)
        return found

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        signed = SIGNED.search(environ.get("HTTP_AUTHORIZATION", ""))
        if signed and signed[2] != "ec2" and signed[1] != ENGINEER:
            question = _question(signed[2], environ, body)
            self.asked.append((signed[1], question))
            if not self.permits(signed[1], question):
                return _refused(signed[2], question, start)
        copy = {k: v for k, v in environ.items() if not k.startswith("werkzeug.")}
        copy |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        content, status, headers = run_wsgi_app(self._moto, copy)
        start(status, list(headers))
        return content


def _refused(service: str, question: Question, start: Callable[..., Any]) -> Iterable[bytes]:
    """Return a refusal in the service's form ("Error responses" of S3's API reference, the JSON protocol)."""
    text = f"not authorized to perform: {question.action} on resource: {question.resource}"
    status, content = "403 Forbidden", f"<Error><Code>AccessDenied</Code><Message>{text}</Message></Error>"
    if service != "s3":
        status, content = "400 Bad Request", json.dumps({"__type": "AccessDeniedException", "Message": text})
    start(status, [("Content-Length", str(len(content)))])
    return [content.encode()]


def _question(service: str, environ: dict[str, Any], body: bytes) -> Question:
    """Return the question that IAM gets about a call.

    Raises:
        ValueError: No machine of a cluster has a reason for this call.
    """
    method, path, query = environ["REQUEST_METHOD"], unquote(environ["PATH_INFO"]), environ["QUERY_STRING"]
    if service == "secretsmanager":
        action = environ["HTTP_X_AMZ_TARGET"].partition(".")[2]
        return Question(f"secretsmanager:{action}", json.loads(body)["SecretId"])
    if service == "s3":
        bucket, _, key = path.removeprefix("/").partition("/")
        if (host := environ["HTTP_HOST"].partition(".s3."))[1]:
            bucket, key = host[0], path.removeprefix("/")
        if key and not query:
            actions = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject"}
            return Question(f"s3:{actions[method]}", f"arn:aws:s3:::{bucket}/{key}")
        if method == "GET" and not key:
            said = parse_qs(query, keep_blank_values=True)
            return Question("s3:ListBucket", f"arn:aws:s3:::{bucket}", {"s3:prefix": said["prefix"][0]})
    raise ValueError(f"a machine has called {service}: {method} {path}?{query}")


class _Silent(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        """Write no line for each request."""


@contextmanager
def recorded_aws(host: str = "127.0.0.1", port: int = 0) -> Iterator[RecordedAws]:
    """Yield the services, empty."""
    made = RecordedAws()
    server = make_server(host, port, made, threaded=True, request_handler=_Silent)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    made.url = f"http://{host.replace('0.0.0.0', '127.0.0.1')}:{server.server_port}"
    reset = urllib.request.Request(f"{made.url}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset, timeout=60).close()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
