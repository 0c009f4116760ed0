"""Compensation: when a later step fails, the earlier steps are undone in reverse order.

Run it: python undo_steps.py

    reserve 1A
    reserve 1B
    release 1B
    release 1A
    the card was declined
"""

# shown from here
from grantwire_idempotency import Compensation


def reserve(seat: str) -> str:
    print(f"reserve {seat}")
    return seat


def release(seat: str) -> None:
    print(f"release {seat}")


def charge() -> None:
    raise ValueError("the card was declined")


def book(seats: list[str]) -> None:
    with Compensation() as undo:
        for seat in seats:
            undo.on_failure(release, reserve(seat))
        charge()


# shown to here


if __name__ == "__main__":
    try:
        book(["1A", "1B"])
    except ValueError as error:
        print(error)
