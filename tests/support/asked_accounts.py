"""A server on the loopback in the place of all of AWS, which notes by whose keys it is asked, and refuses.

STS alone answers: a role's keys are named after the role, so that a chain of roles can be followed.
"""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs

import pytest

ACCOUNT = "111111111111"
REFUSAL = "<Response><Errors><Error><Code>AuthFailure</Code><Message>no</Message></Error></Errors></Response>"
ROLE = """<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>
<Credentials><AccessKeyId>KEYOF{name}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>
<SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>
<AssumedRoleUser><Arn>arn:aws:sts::111111111111:assumed-role/{name}/s</Arn>
<AssumedRoleId>A:s</AssumedRoleId></AssumedRoleUser></{action}Result></{action}Response>"""
CALLER = f"""<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<GetCallerIdentityResult><Account>{ACCOUNT}</Account><UserId>u</UserId><Arn>a</Arn>
</GetCallerIdentityResult></GetCallerIdentityResponse>"""


class AskedAccounts:
    """The server.

    Attributes:
        url: Its address.
        asked: The access key of each call but those to STS; empty for one that is not signed.
        sts: The access key, and the parameters, of each call to STS.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.sts: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                signed = re.search(r"Credential=(\w+)/", self.headers.get("authorization") or "")
                status, answer = outer.answer(signed[1] if signed else "", body.decode("latin-1"))
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.encode())

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST  # noqa: N815  the base class names them so

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, key: str, body: str) -> tuple[int, str]:
        """Note a call, and return the status and the text of its answer."""
        given = {name: values[0] for name, values in parse_qs(body).items()}
        action = given.get("Action", "")
        if action in ("AssumeRole", "AssumeRoleWithWebIdentity"):
            self.sts.append((key, given))
            return 200, ROLE.format(action=action, name=given["RoleArn"].rpartition("/")[2])
        if action == "GetCallerIdentity":
            self.sts.append((key, given))
            return 200, CALLER
        self.asked.append(key)
        return 403, REFUSAL

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def accounts() -> Iterator[AskedAccounts]:
    """The server for one test."""
    made = AskedAccounts()
    yield made
    made.close()
