"""C29: the header Idempotency-Key, the same for ASGI and WSGI."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import FailMode, Key
from grantwire_idempotency.errors import CircuitOpenError, ConfigError, InternalError, LeaseLostError, RetryableError
from layers.idempotency.tests.unit.doubles import FailingStore, RecordedMetrics, logged
from layers.idempotency.tests.unit.http_doubles import Application, AsgiSubject, WsgiSubject

if TYPE_CHECKING:
    from grantwire_idempotency import CheckResult
    from layers.idempotency.tests.unit.http_doubles import Response

PLAIN = {"content-type": "text/plain"}


class AsyncFailingStore:
    """A `FailingStore` for asyncio."""

    def __init__(self, inner: FailingStore) -> None:
        self.inner = inner

    async def check(self, *arguments: Any) -> Any:
        """See `Store`."""
        return self.inner.check(*arguments)

    async def store_result(self, *arguments: Any) -> None:
        """See `Store`."""
        self.inner.store_result(*arguments)

    async def store_failure(self, *arguments: Any) -> None:
        """See `Store`."""
        self.inner.store_failure(*arguments)

    async def extend(self, *arguments: Any) -> None:
        """See `Store`."""
        self.inner.extend(*arguments)

    async def get_result(self, *arguments: Any) -> Any:
        """See `Store`."""
        return self.inner.get_result(*arguments)


@pytest.fixture(params=[AsgiSubject, WsgiSubject], ids=["asgi", "wsgi"])
def subject(request: pytest.FixtureRequest) -> Any:
    """Return what creates the middleware around an application."""
    return request.param


@pytest.fixture
def store() -> FailingStore:
    """Return a store whose calls can fail."""
    return FailingStore()


def wrap(subject: Any, store: FailingStore) -> Any:
    """Return the store for the protocol."""
    return AsyncFailingStore(store) if subject is AsgiSubject else store


def problem(response: Response) -> dict[str, Any]:
    """Return the problem document."""
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["content-length"] == str(len(response.body))
    document: dict[str, Any] = json.loads(response.body)
    assert document["status"] == response.status
    assert document["title"]
    return document


def test_repeat_gets_the_same_response(subject: Any) -> None:
    """The application runs once. A repeat gets status, body and the headers that belong to them, and a mark."""
    body = bytes(range(256)) + "ä".encode()
    headers = {"Content-Type": "image/png", "ETag": '"1"', "Location": "/orders/1", "X-Trace": "1", "Set-Cookie": "s=1"}
    app = Application([(201, headers, body)])
    guarded = subject(app)
    first, repeat = guarded.send(), guarded.send()
    assert [call.body for call in app.calls] == [b'{"total": 5}']
    assert (first.status, first.body) == (repeat.status, repeat.body) == (201, body)
    assert first.headers == {name.lower(): value for name, value in headers.items()}
    assert repeat.headers == {
        "content-type": "image/png",
        "etag": '"1"',
        "location": "/orders/1",
        "content-length": str(len(body)),
        "idempotent-replayed": "true",
    }


def test_more_headers_are_stored_on_request(subject: Any) -> None:
    """Whatever their case, and several with one name."""
    guarded = subject(Application(), stored_headers=["set-COOKIE"])
    guarded.send()
    assert guarded.send().headers["set-cookie"] == "s=1"


@pytest.mark.parametrize(
    "change",
    [
        {"body": b'{"total": 6}'},
        {"path": "/orders/1"},
        {"query": "dry_run=1"},
        {"method": "PATCH"},
        {"root": "/v2"},
    ],
    ids=["body", "path", "query", "method", "mount"],
)
def test_key_of_another_request_is_refused(subject: Any, change: dict[str, Any]) -> None:
    """422, as the draft of the IETF says; the first request keeps its response."""
    app = Application()
    guarded = subject(app)
    first = guarded.send()
    response = guarded.send(**change)
    assert response.status == 422
    assert problem(response)["code"] == "IDEMPOTENCY_KEY_CONFLICT"
    assert guarded.send().body == first.body
    assert len(app.calls) == 1


@pytest.mark.parametrize("content_type", ["application/json", "Application/Problem+JSON; charset=utf-8"])
def test_same_json_is_the_same_request(subject: Any, content_type: str) -> None:
    """A client that builds its request again may write it in another way. What is no JSON counts byte for byte."""
    guarded = subject(Application())
    statuses = [
        guarded.send(body, content_type=content_type, key=f"k{number}").status
        for number, bodies in enumerate(
            [
                (b'{"a": 1, "b": [1.0]}', b'{"b":[1.0],"a":1}', b'{"b": [1], "a": 1}'),
                (b"no json", b"no json", b"no  json"),
                (b"[" * 100_000, b"[" * 100_000, b"[" * 99_999),
            ]
        )
        for body in bodies
    ]
    assert statuses == [201, 201, 422] * 3


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/jsonl"])
def test_other_bodies_are_compared_byte_for_byte(subject: Any, content_type: str) -> None:
    """The middleware does not know what they mean."""
    guarded = subject(Application())
    assert [guarded.send(body, content_type=content_type).status for body in (b"{}", b"{ }")] == [201, 422]


def test_two_callers_never_share_a_key(subject: Any) -> None:
    """Neither the response nor the conflict of another caller."""
    app = Application([(200, PLAIN, b"for ann"), (200, PLAIN, b"for bob")])
    guarded = subject(app)
    assert guarded.send().body == b"for ann"
    assert guarded.send(b"other", user="bob").body == b"for bob"
    assert guarded.send().body == b"for ann"
    assert len(app.calls) == 2


def test_two_applications_with_one_store_never_share_a_key(subject: Any) -> None:
    """`name` is part of the key."""
    apps, store = (Application(), Application()), subject.store()
    for app, name in zip(apps, ("shop", "bank"), strict=True):
        subject(app, store=store, name=name).send()
    assert [len(app.calls) for app in apps] == [1, 1]


def test_request_without_caller_is_refused(subject: Any) -> None:
    """Otherwise, callers could share a key. The body is not read."""
    app = Application()
    response = subject(app).send(user="")
    assert response.status == 403
    assert problem(response)["code"] == "CALLER_UNKNOWN"
    assert app.calls == []


def test_caller_of_another_type_is_a_bug(subject: Any) -> None:
    """A number could be the id of a user and of a client."""
    with pytest.raises(InternalError, match="caller must return a str or None, not a int"):
        subject(Application(), caller=lambda _: 7).send()


@pytest.mark.parametrize(
    ("key", "detail"),
    [
        (None, "Idempotency-Key is missing; send a new UUID with each new request."),
        ("", "Idempotency-Key must not be empty."),
        ('""', "Idempotency-Key must not be empty."),
        ("a" * 256, "Idempotency-Key must have at most 255 characters."),
        ("a,b", "Idempotency-Key must be sent exactly once."),
        ('"a","b"', "Idempotency-Key must be sent exactly once."),
        ('"a', "Idempotency-Key must be a quoted string or plain text."),
        ('"a\\n"', "Idempotency-Key must be a quoted string or plain text."),
        ("a\x7f", "Idempotency-Key must not contain control characters or lone surrogates."),
        ("\xe4", "Idempotency-Key must contain only ASCII characters."),
    ],
)
def test_invalid_key_is_refused(subject: Any, key: str | None, detail: str) -> None:
    """400 with what is wrong."""
    app = Application()
    response = subject(app).send(key=key)
    assert response.status == 400
    assert problem(response) | {"title": ""} == {"title": "", "status": 400, "code": "BAD_REQUEST", "detail": detail}
    assert app.calls == []


def test_quoted_and_plain_key_are_the_same(subject: Any) -> None:
    """The draft has a quoted string; most clients send plain text."""
    app = Application()
    guarded = subject(app)
    for key in ('a"b\\c', r'"a\"b\\c"', '  a"b\\c '):
        assert guarded.send(key=key).status == 201
    assert len(app.calls) == 1


def test_problem_names_the_documentation(subject: Any) -> None:
    """The draft asks for a link."""
    response = subject(Application(), documentation="https://shop.example/keys").send(key=None)
    assert problem(response)["type"] == "https://shop.example/keys"


def test_key_is_optional_if_the_application_says_so(subject: Any) -> None:
    """Without a key, the request runs unguarded; with one, it is guarded."""
    app = Application()
    guarded = subject(app, required=False)
    for key in (None, None, "k1", "k1"):
        assert guarded.send(key=key).status == 201
    assert len(app.calls) == 3


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
def test_other_methods_pass_through(subject: Any, method: str) -> None:
    """They are idempotent themselves, or change nothing."""
    app = Application([(200, PLAIN, b"")])
    guarded = subject(app)
    assert [guarded.send(method=method, body=b"").status for _ in range(2)] == [200, 200]
    assert len(app.calls) == 2


def test_methods_can_be_chosen(subject: Any) -> None:
    """A client of DELETE may want the same response again, instead of 404."""
    app = Application()
    guarded = subject(app, methods=["DELETE"])
    for method in ("DELETE", "DELETE", "POST", "POST"):
        guarded.send(method=method)
    assert len(app.calls) == 3


@pytest.mark.parametrize("paths", [["/orders/", "/refunds"], lambda path: path == "/" or path.startswith("/orders")])
def test_paths_can_be_chosen(subject: Any, paths: Any) -> None:
    """A prefix covers what is below it; a path is that of the application, wherever it is mounted."""
    app = Application()
    guarded = subject(app, paths=paths)
    for path, root in (("/orders", ""), ("/orders", "/v1"), ("/orders/1/items", "")):
        assert guarded.send(path=path, root=root, key=None).status == 400, path
    for path, root in (("/login", ""), ("/v1/orders", ""), ("/order", ""), ("/refunds-old", "")):
        assert guarded.send(path=path, root=root, key=None).status == 201, path


@pytest.mark.parametrize("status", [307, 308, 400, 401, 403, 408, 429, 500, 503])
def test_response_that_ends_no_request_is_not_stored(subject: Any, status: int) -> None:
    """It is sent as it is; the same request runs again, and so does another one with the key."""
    app = Application([(status, PLAIN, b"not now"), (201, PLAIN, b"done")])
    guarded = subject(app)
    refused, done, repeat = guarded.send(), guarded.send(b"corrected"), guarded.send(b"corrected")
    assert (refused.status, refused.body, refused.headers) == (status, b"not now", PLAIN)
    assert (done.body, repeat.body) == (b"done", b"done")
    assert len(app.calls) == 2


def test_refusal_that_asks_for_a_repeat_is_not_stored(subject: Any) -> None:
    """With Retry-After: for example, a lock inside the application is held. With 202, it means something else."""
    app = Application([(409, {**PLAIN, "Retry-After": "1"}, b"no"), (202, {**PLAIN, "Retry-After": "5"}, b"done")])
    guarded = subject(app)
    assert [guarded.send().status for _ in range(3)] == [409, 202, 202]
    assert len(app.calls) == 2


@pytest.mark.parametrize("status", [200, 204, 303, 404, 409, 422])
def test_response_that_ends_a_request_is_stored(subject: Any, status: int) -> None:
    """Refusals too: they are final for the key. A response without a body has no length."""
    app = Application([(status, {} if status == 204 else PLAIN, b"")])
    guarded = subject(app)
    first, repeat = guarded.send(), guarded.send()
    assert (first.status, repeat.status, len(app.calls)) == (status, status, 1)
    assert ("content-length" in repeat.headers) == (status != 204)


def test_stored_statuses_can_be_chosen(subject: Any) -> None:
    """As a range or a set."""
    app = Application([(404, PLAIN, b"")])
    guarded = subject(app, stored_statuses=range(200, 300))
    guarded.send()
    guarded.send()
    assert len(app.calls) == 2


def test_error_of_the_application_releases_the_key(subject: Any) -> None:
    """It is raised as it is, also if it is one of the library."""
    for error in (ValueError("no"), RetryableError("no"), KeyError("no")):
        app = Application([error, (201, PLAIN, b"done")])
        guarded = subject(app)
        with pytest.raises(type(error), match="no"):
            guarded.send()
        assert guarded.send().body == b"done"


def test_repeat_while_the_first_request_runs(subject: Any) -> None:
    """409 with Retry-After; another request with the key is refused for good."""
    inner: list[Response] = []
    app = Application()
    guarded = subject(app)
    app.during = lambda: inner.extend((subject_in_thread(guarded), subject_in_thread(guarded, b"other")))
    guarded.send()
    running, other = inner
    assert (running.status, running.headers["retry-after"]) == (409, "1")
    assert problem(running)["code"] == "REQUEST_IN_PROGRESS"
    assert other.status == 422
    assert len(app.calls) == 1


def subject_in_thread(guarded: Any, *arguments: Any) -> Response:
    """Send a request from another thread, because an event loop may run in this one."""
    with ThreadPoolExecutor(1) as executor:
        response: Response = executor.submit(guarded.send, *arguments).result()
    return response


@pytest.mark.parametrize("error", [RetryableError("host 10.0.0.1 is down", retry_after=7), CircuitOpenError("open")])
def test_unavailable_store_closes_by_default(subject: Any, store: FailingStore, error: RetryableError) -> None:
    """503 with Retry-After, nothing runs, and the client does not learn about servers."""
    store.failing["check"] = [error, error]
    app = Application()
    guarded = subject(app, store=wrap(subject, store))
    response = guarded.send()
    assert (response.status, response.headers["retry-after"]) == (503, str(error.retry_after))
    assert problem(response)["code"] == "UNAVAILABLE"
    assert b"10.0.0.1" not in response.body
    assert app.calls == []
    store.failing.clear()
    assert guarded.send().status == 201


def test_unavailable_store_with_open_runs_unguarded(subject: Any, store: FailingStore) -> None:
    """The record is written when the store is back, so that a repeat gets the response."""
    store.failing["check"] = [RetryableError("down")] * 2
    app, metrics = Application(), RecordedMetrics()
    guarded = subject(app, store=wrap(subject, store), fail_mode=FailMode.OPEN, metrics=metrics)
    first, repeat = guarded.send(), guarded.send()
    assert (first.status, repeat.status, repeat.body) == (201, 201, first.body)
    assert (len(app.calls), metrics.unguarded_runs, metrics.flushes) == (1, ["shop"], 2)


def test_request_that_lost_its_claim_must_be_repeated(subject: Any, store: FailingStore) -> None:
    """It took longer than `lease`, so the response of another run may be the one that counts."""
    store.failing["store_result"] = [LeaseLostError("lost", retry_after=3)]
    response = subject(Application(), store=wrap(subject, store)).send()
    assert (response.status, response.headers["retry-after"]) == (503, "3")


def test_store_that_refuses_the_application_is_an_error(subject: Any, store: FailingStore) -> None:
    """A wrong password is no outage: the server responds 500 and logs the reason, in every fail mode."""
    store.failing["check"] = [ConfigError(["wrong password"])] * 2
    for mode in FailMode:
        with pytest.raises(ConfigError, match="wrong password"):
            subject(Application(), store=wrap(subject, store), fail_mode=mode).send()


def test_response_that_the_store_lost_is_not_repeated(subject: Any, store: FailingStore) -> None:
    """The work is done: a repeat gets an error, and does not run."""
    store.failing["store_result"] = [InternalError("too large for this store")]
    app = Application()
    guarded = subject(app, store=wrap(subject, store))
    with pytest.raises(InternalError, match="too large"):
        guarded.send()
    response = guarded.send()
    assert response.status == 500
    assert problem(response)["code"] == "RESPONSE_NOT_STORED"
    assert len(app.calls) == 1


@pytest.mark.parametrize(
    "answer",
    [(201, PLAIN, b"x" * 101), (200, {"content-type": "text/event-stream; charset=utf-8"}, b"data: 1\n\n")],
    ids=["large", "stream"],
)
def test_response_that_cannot_be_stored_is_refused(subject: Any, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is a mistake of wiring, so the first request fails too; the work is done, so no repeat runs."""
    app = Application([answer])
    guarded = subject(app, max_response_bytes=100)
    first, repeat = guarded.send(), guarded.send()
    assert (first.status, repeat.status, len(app.calls)) == (500, 500, 1)
    assert first.body == repeat.body
    assert problem(first)["code"] == "RESPONSE_NOT_STORED"
    (line,) = logged(caplog, "ERROR")
    assert line["message"] == "response cannot be stored, exclude its path from the middleware"
    assert (line["method"], line["path"]) == ("POST", "/orders")


def test_response_of_the_largest_size_is_stored(subject: Any) -> None:
    """The limit is part of the allowed range."""
    guarded = subject(Application([(200, PLAIN, b"x" * 100)]), max_response_bytes=100)
    assert [guarded.send().status for _ in range(2)] == [200, 200]


def test_refused_response_of_a_failure_releases_the_key(subject: Any) -> None:
    """An error page of 500 says that a repeat may run, however large it is."""
    app = Application([(500, PLAIN, b"x" * 101), (201, PLAIN, b"done")])
    guarded = subject(app, max_response_bytes=100)
    assert [guarded.send().status for _ in range(2)] == [500, 201]


def test_large_request_is_refused(subject: Any) -> None:
    """413, and nothing runs; the limit itself is allowed."""
    app = Application()
    guarded = subject(app, max_request_bytes=5)
    response = guarded.send(b"123456")
    assert response.status == 413
    assert problem(response)["detail"] == "The body of the request must have at most 5 bytes."
    assert guarded.send(b"12345").status == 201
    assert len(app.calls) == 1


def test_store_holds_neither_caller_nor_body(subject: Any) -> None:
    """A caller can be a credential. The key of the client is kept, for people who inspect the store."""
    keys: list[Key] = []

    class Watched(FailingStore):
        def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
            keys.append(key)
            return super().check(key, ttl, token)

    subject(Application(), store=wrap(subject, Watched())).send(user="secret")
    (key,) = keys
    assert key.message_id == "k1"
    assert "secret" not in repr(key)


def test_wiring_mistakes_are_errors(subject: Any) -> None:
    """Every problem at once, when the middleware is created."""
    wrong: dict[str, Any] = {
        "store": object(),
        "name": "",
        "caller": "x-user",
        "methods": ["GET"],
        "paths": "/orders",
        "required": "yes",
        "ttl": 5,
        "lease": timedelta(0),
        "fail_mode": "open",
        "stored_statuses": ["2xx"],
        "stored_headers": ["transfer-encoding"],
        "max_request_bytes": 0,
        "max_response_bytes": "1M",
        "documentation": 5,
        "metrics": 5,
        "logger": 5,
    }
    with pytest.raises(ConfigError) as caught:
        subject(Application(), **wrong)
    assert len(caught.value.problems) == len(wrong)
    for name, message in zip(wrong, caught.value.problems, strict=True):
        assert name in message
