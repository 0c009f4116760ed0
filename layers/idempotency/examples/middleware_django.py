"""Django behind the middleware: a view charges each order once, under WSGI and under ASGI.

Serve it: REDIS_URL=redis://localhost:6379 gunicorn middleware_django:application
Run it with three requests to WSGI and one to ASGI: REDIS_URL=redis://localhost:6379 python middleware_django.py

    charge 5
    201 {"total": 5}
    201 {"total": 5} replayed
    422 This Idempotency-Key was used for another request. Use a new key.
    201 {"total": 5} replayed
"""

# shown from here
import json
import os
from http.cookies import SimpleCookie
from typing import Any

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from grantwire_idempotency import (
    AsgiIdempotencyMiddleware,
    AsyncRedisStore,
    RedisStore,
    WsgiIdempotencyMiddleware,
    connect_redis,
    connect_redis_async,
)

settings.configure(ALLOWED_HOSTS=["shop.example"], ROOT_URLCONF=__name__)


def create_order(request: HttpRequest) -> JsonResponse:
    total = json.loads(request.body)["total"]
    print(f"charge {total}")
    return JsonResponse({"total": total}, status=201)


urlpatterns = [path("orders", create_order)]


def find_session(cookies: str) -> str | None:
    """Return the id of the session. A user who logs in again has a new one, and so new keys."""
    session = SimpleCookie(cookies).get("sessionid")
    return None if session is None else session.value


# wsgi.py
application = WsgiIdempotencyMiddleware(
    get_wsgi_application(),
    RedisStore(connect_redis(os.environ["REDIS_URL"])),
    name="django-shop",
    caller=lambda environ: find_session(environ.get("HTTP_COOKIE", "")),
    paths=["/orders"],
)


# asgi.py; both have the same keys
def find_caller(scope: Any) -> str | None:
    return find_session(dict(scope["headers"]).get(b"cookie", b"").decode())


asgi_application = AsgiIdempotencyMiddleware(
    get_asgi_application(),
    AsyncRedisStore(connect_redis_async(os.environ["REDIS_URL"])),
    name="django-shop",
    caller=find_caller,
    paths=["/orders"],
)
# shown to here


def show(response: Any) -> None:
    text = json.loads(response.text).get("detail", response.text)
    print(response.status_code, text, *["replayed"] * ("Idempotent-Replayed" in response.headers))


if __name__ == "__main__":
    import asyncio

    import httpx

    def options(total: int) -> dict[str, Any]:
        headers = {"Idempotency-Key": "k1", "Cookie": "sessionid=of-ann"}
        return {"url": "http://shop.example/orders", "json": {"total": total}, "headers": headers}

    with httpx.Client(transport=httpx.WSGITransport(app=application)) as client:
        for total in (5, 5, 6):
            show(client.post(**options(total)))

    async def send_again() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=asgi_application)) as client:
            show(await client.post(**options(5)))

    asyncio.run(send_again())
