"""Load what all suites share: those of the product in `tests`, of the library in `layers/idempotency/tests`."""

pytest_plugins = ("tests.support.session", "tests.support.fixtures")
