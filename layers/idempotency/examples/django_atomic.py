"""Django: the key of a message or of a request is stored inside `atomic()`, with your models.

Run it: DATABASE_URL=postgresql://… python django_atomic.py

    201 {"order_id": 1}
    201 {"order_id": 1} replayed
    422 this Idempotency-Key was used for another request; use a new key
    True False
    0 orders are left
"""

import json
import os
from urllib.parse import urlsplit

import django
from django.conf import settings

# In a project this is settings.py, and the rest is models.py and views.py of an application.
address = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": address.path.lstrip("/"),
            "USER": address.username or "",
            "PASSWORD": address.password or "",
            "HOST": address.hostname or "",
            "PORT": address.port or "",
        }
    },
    ALLOWED_HOSTS=["testserver"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    ROOT_URLCONF=__name__,
)
django.setup()

# shown from here
from django.db import connection, models, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from grantwire_idempotency import InboxGuard, Message, RequestIdentity, StoredResponse, TransactionGuard
from grantwire_idempotency.errors import BadRequestError, KeyConflictError, RetryableError

guard = TransactionGuard()  # no database: it works inside `atomic()`
inbox = InboxGuard(name="cancellations")


class Order(models.Model):
    total = models.IntegerField()

    class Meta:
        app_label = "shop"


def store_order(identity: RequestIdentity, total: int) -> StoredResponse:
    with transaction.atomic():
        stored = guard.begin(connection, identity)
        if stored is None:
            order = Order.objects.create(total=total)
            stored = StoredResponse(201, json.dumps({"order_id": order.pk}))
            guard.finish(connection, identity, stored)  # without it, the COMMIT fails
    return stored


def create_order(request: HttpRequest) -> HttpResponse:
    try:
        order = json.loads(request.body)
        # The caller is the authenticated user, such as request.user.pk.
        identity = RequestIdentity.create("ann", "POST /shop/orders", request.headers.get("Idempotency-Key", ""), order)
        stored = store_order(identity, order["total"])
    except BadRequestError as error:
        return HttpResponse(str(error), status=400)
    except KeyConflictError as error:
        return HttpResponse(str(error), status=422)
    except RetryableError as error:
        return HttpResponse(str(error), status=503, headers={"Retry-After": str(error.retry_after)})
    headers = {"Idempotent-Replayed": "true"} if stored.replayed else {}
    return HttpResponse(stored.body, "application/json", stored.status_code, headers=headers)


urlpatterns = [path("shop/orders", create_order)]


def cancel_orders(message: Message) -> bool:
    """Return whether the message was new."""
    with transaction.atomic():
        if not inbox.record(connection, message):
            return False
        Order.objects.filter(total__lt=message.payload["below"]).delete()
    return True


# shown to here


if __name__ == "__main__":
    from django.test import Client

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS shop_order (id bigserial PRIMARY KEY, total int)")
    client = Client()
    for total in (5, 5, 6):
        response = client.post(
            "/shop/orders", {"total": total}, content_type="application/json", headers={"Idempotency-Key": "k1"}
        )
        replayed = ["replayed"] * ("Idempotent-Replayed" in response.headers)
        print(response.status_code, response.content.decode(), *replayed)
    message = Message("m-1", body=json.dumps({"below": 10}))
    print(cancel_orders(message), cancel_orders(message))
    print(Order.objects.count(), "orders are left")
    connection.close()
