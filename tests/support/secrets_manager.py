"""A Secrets Manager over HTTP on 127.0.0.1, which checks the signature of each request with botocore."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from grantwire import aws

if TYPE_CHECKING:
    from collections.abc import Iterator

REGION = "us-east-1"
ACCESS_KEY, SECRET_KEY, SESSION_TOKEN = "ASIAEXAMPLE", "test-key", "test+token=="
_TIME = "%Y%m%dT%H%M%SZ"


class FakeSecretsManager:
    """The secrets, by ARN; `requests` counts, and with `is_down` every response is 500."""

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}
        self.requests = 0
        self.is_down = False
        self.url = ""

    @property
    def environ(self) -> dict[str, str]:
        """The variables that Lambda gives to a function, and the endpoint."""
        return {
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_SESSION_TOKEN": SESSION_TOKEN,
            "AWS_ENDPOINT_URL": self.url,
        }

    def store(self, name: str, text: str) -> str:
        """Create or change a secret, and return its ARN."""
        arn = f"arn:aws:secretsmanager:{REGION}:123456789012:secret:{name}"
        self.secrets[arn] = text
        return arn

    def respond(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON for a request."""
        self.requests += 1
        if self.is_down:
            return 500, {"__type": "InternalServiceError"}
        if headers["authorization"] != _expected_signature(headers, body):
            return 400, {"__type": "InvalidSignatureException"}
        arn = json.loads(body)["SecretId"]
        if arn not in self.secrets:
            return 400, {"__type": "com.amazonaws.secretsmanager#ResourceNotFoundException"}
        return 200, {"ARN": arn, "SecretString": self.secrets[arn]}


def _expected_signature(headers: dict[str, str], body: bytes) -> str:
    signed = {name: headers[name] for name in ("content-type", "x-amz-target")}
    request = AWSRequest("POST", f"http://{headers['host']}/", headers=signed, data=body)
    now = datetime.strptime(headers["x-amz-date"], _TIME)  # noqa: DTZ007  # botocore's is naive, too
    with patch("botocore.auth.get_current_datetime", lambda: now):
        SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY, SESSION_TOKEN), "secretsmanager", REGION).add_auth(request)
    return str(request.headers["Authorization"])


@contextmanager
def running_secrets_manager() -> Iterator[FakeSecretsManager]:
    """Serve a Secrets Manager, and use it in this process."""
    manager = FakeSecretsManager()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, content = manager.respond({name.lower(): value for name, value in self.headers.items()}, body)
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_arguments: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    manager.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    aws.configure(manager.environ)
    try:
        yield manager
    finally:
        aws.configure({})
        server.shutdown()
        server.server_close()
        thread.join()
