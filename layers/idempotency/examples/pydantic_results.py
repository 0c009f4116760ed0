"""pydantic models as results: a serializer with two methods.

Run it: python pydantic_results.py

    Receipt(order='o-1', total=5)
    Receipt(order='o-1', total=5)
"""

from typing import Any

from pydantic import BaseModel, TypeAdapter

from grantwire_idempotency import MemoryStore, idempotent


class Receipt(BaseModel):
    order: str
    total: int


class PydanticSerializer:
    def __init__(self, kind: Any) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def dump(self, value: Any) -> str:
        return self._adapter.dump_json(value).decode()

    def load(self, text: str) -> Any:
        return self._adapter.validate_json(text)


@idempotent(MemoryStore(), key=lambda order, _total: order, name="orders", serializer=PydanticSerializer(Receipt))
def buy(order: str, total: int) -> Receipt:
    return Receipt(order=order, total=total)


if __name__ == "__main__":
    print(repr(buy("o-1", 5)))
    print(repr(buy("o-1", 7)))
