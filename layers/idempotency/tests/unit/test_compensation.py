"""C9: undo steps run in reverse order when a later step fails."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency import Compensation
from grantwire_idempotency.errors import InternalError
from layers.idempotency.tests.unit.doubles import logged

if TYPE_CHECKING:
    from collections.abc import Callable


def failing(_: str) -> None:
    """Fail as an undo step."""
    raise OSError("no route to the warehouse")


def test_undo_steps_run_in_reverse_even_if_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    """C9: a failed undo step is logged with name and number; the caller gets the error of the block."""
    undone: list[str] = []
    refused = ValueError("card refused")

    def buy() -> None:
        with Compensation() as undo:
            undo.on_failure(undone.append, "reservation")
            undo.on_failure(failing, "a secret of the customer")
            undo.on_failure(undone.append, "shipment")
            raise refused

    with pytest.raises(ValueError, match="card refused") as raised:
        buy()
    assert raised.value is refused
    assert undone == ["shipment", "reservation"]
    (line,) = logged(caplog, "ERROR")
    assert (line["message"], line["step"], line["undo"]) == ("undo step failed", 2, "failing")
    assert "no route to the warehouse" in line["exception"]
    assert "secret" not in str(line)


def test_success_runs_no_undo_step() -> None:
    """C9: a block that succeeds undoes nothing."""
    undone: list[str] = []
    with Compensation() as undo:
        undo.on_failure(undone.append, "reservation")
    assert undone == []


def test_only_completed_steps_are_undone() -> None:
    """C9: a step registers its undo step after it has succeeded."""
    undone: list[str] = []

    def charge() -> None:
        raise ValueError("card refused")

    def buy() -> None:
        with Compensation() as undo:
            undo.on_failure(undone.append, "reservation")
            charge()
            undo.on_failure(undone.append, "charge")

    with pytest.raises(ValueError, match="card refused"):
        buy()
    assert undone == ["reservation"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupt_runs_undo_steps(interrupt: type[BaseException]) -> None:
    """C9: an interrupt of the block, or of an undo step, does not stop the undo steps."""
    undone: list[str] = []

    def interrupted() -> None:
        raise interrupt

    def buy() -> None:
        with Compensation() as undo:
            undo.on_failure(undone.append, "reservation")
            undo.on_failure(interrupted)
            raise interrupt

    with pytest.raises(interrupt):
        buy()
    assert undone == ["reservation"]


def test_undo_step_gets_positional_and_keyword_arguments() -> None:
    """Keyword arguments may have any name."""
    calls: list[tuple[object, ...]] = []

    def release(hold: str, *, undo: str) -> None:
        calls.append((hold, undo))

    def buy() -> None:
        with Compensation() as undo:
            undo.on_failure(release, "h_1", undo="now")
            undo.on_failure(partial(release, "h_2"), undo="later")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        buy()
    assert calls == [("h_2", "later"), ("h_1", "now")]


def test_compensation_can_be_reused_but_not_nested() -> None:
    """A second block does not undo the steps of the first one."""
    undone: list[str] = []
    undo = Compensation()

    def buy(what: str, error: Exception | None) -> None:
        with undo:
            undo.on_failure(undone.append, what)
            if error is not None:
                raise error

    buy("first", None)
    with pytest.raises(ValueError, match="stop"):
        buy("second", ValueError("stop"))
    with undo, pytest.raises(InternalError, match="one `with` block at a time"), undo:
        pass
    assert undone == ["second"]


@pytest.mark.parametrize(
    "misuse", [lambda undo: undo.on_failure(print), lambda undo: undo.__enter__().on_failure(None)]
)
def test_undo_step_outside_block_or_not_callable_is_rejected(misuse: Callable[[Compensation], None]) -> None:
    """An undo step that could never run is an InternalError."""
    with pytest.raises(InternalError):
        misuse(Compensation())
