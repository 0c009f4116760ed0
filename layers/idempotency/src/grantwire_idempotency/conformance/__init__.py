"""A conformance suite for stores, to be run with pytest (C16).

`pytest --pyargs grantwire_idempotency.conformance` tests the store that the variable IDEMPOTENCY_STORE names as
`module:function`. The function returns a `Harness`. Without the variable, the memory store is tested. Or derive a test
class from `StoreConformance` and write a fixture `harness`. The harness of an asynchronous store returns it in a
`BlockingStore`.
"""

import pytest

# Without it, a failed test of the suite would not show the values that it compared.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("calls", "concurrency", "entries", "faults", "limits", "versions"))
)
