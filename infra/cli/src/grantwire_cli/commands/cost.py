"""`grantwire cost`: what a stack costs a month on AWS."""

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from grantwire_cli.costs import PRICES_OF, Load, Prices, monthly
from grantwire_cli.registry import register
from grantwire_cli.session import Session

PRICES = Prices()
LOAD = Load()
PRICE_HELP = "Prices in dollars"


class Mode(StrEnum):
    """The values of WorkerMode."""

    ALWAYS_ON = "always-on"
    ECONOMICAL = "economical"


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    register(
        app,
        "cost",
        "grantwire cost --rate 10",
        "grantwire cost --rate 0 --mode economical",
        "grantwire cost --rate 100 --gigabyte-second 0.0000133334 --json | jq .total",
    )(cost)


def _price(name: str) -> Any:
    return typer.Option(name, min=0, rich_help_panel=PRICE_HELP)


def cost(  # the inputs of the arithmetic
    session: Session,
    *,
    rate: Annotated[float, typer.Option("--rate", min=0, help="Changes per second, on average.")],
    mode: Annotated[Mode, typer.Option("--mode", help="As WorkerMode.")] = Mode.ALWAYS_ON,
    minutes: Annotated[int, typer.Option("--worker-minutes", min=1, help="As WorkerMinutes.")] = LOAD.worker_minutes,
    reads: Annotated[float, typer.Option("--reads", min=0, help="Reads for each change.")] = LOAD.reads_per_change,
    clients: Annotated[int, typer.Option("--clients", min=1, help="Tokens in use.")] = LOAD.clients,
    memory: Annotated[int, typer.Option("--memory", min=128, help="As MemorySize.")] = LOAD.memory_mb,
    request_ms: Annotated[float, typer.Option("--request-ms", min=1, help="Billed time.")] = LOAD.request_ms,
    gigabyte_second: Annotated[float, _price("--gigabyte-second")] = PRICES.gigabyte_second,
    million_invocations: Annotated[float, _price("--million-invocations")] = PRICES.million_invocations,
    million_requests: Annotated[float, _price("--million-requests")] = PRICES.million_requests,
    logs_gigabyte: Annotated[float, _price("--logs-gigabyte")] = PRICES.logs_gigabyte,
    metric: Annotated[float, _price("--metric")] = PRICES.metric,
    alarm: Annotated[float, _price("--alarm")] = PRICES.alarm,
    secret: Annotated[float, _price("--secret")] = PRICES.secret,
) -> None:
    """Compute what a stack costs a month on AWS, without PostgreSQL, NATS and the network.

    It sends nothing. The default prices are list prices of us-east-1 with a date; docs/costs.md has the arithmetic.
    """
    load = Load(rate, reads, clients, mode, minutes, memory, request_ms)
    prices = Prices(gigabyte_second, million_invocations, million_requests, logs_gigabyte, metric, alarm, secret)
    found = monthly(load, prices)
    if session.output.as_json:
        session.output.json({**found.as_dict(), "prices_of": PRICES_OF})
        return
    amounts = {**found.items, "total": found.total}
    rows = [(name, Text(f"{value:,.2f}", justify="right")) for name, value in amounts.items()]
    session.output.table(("item", "dollars a month"), rows)
    session.note(f"Default prices are those of {PRICES_OF} in us-east-1. PostgreSQL, NATS and the network come on top.")
