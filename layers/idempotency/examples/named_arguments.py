"""Keys from named arguments: a repeat is recognised however it is called, and another amount is an error.

Run it: python named_arguments.py

    5 from ann for o-1
    receipt 1
    receipt 1
    this idempotency key was used with other arguments; use a new key
"""

# shown from here
from itertools import count

from grantwire_idempotency import MemoryStore, argument, idempotent
from grantwire_idempotency.errors import KeyConflictError

receipts = count(1)


@idempotent(MemoryStore(), key=argument("order_id"), content=argument("customer", "amount"), name="payment:charge")
def charge(order_id: str, customer: str, amount: int = 5) -> str:
    print(f"{amount} from {customer} for {order_id}")
    return f"receipt {next(receipts)}"


# shown to here


if __name__ == "__main__":
    print(charge("o-1", "ann"))
    print(charge(customer="ann", order_id="o-1", amount=5))
    try:
        charge("o-1", "ann", 7)
    except KeyConflictError as error:
        print(error)
