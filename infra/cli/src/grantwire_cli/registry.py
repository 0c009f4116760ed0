"""How a command is registered: shared options, examples in its help, errors and exit codes.

A command is a function `(session, options…) -> exit code or None`. `register` adds the shared options to its
signature, so that they can be given after the command's name as well as before it.
"""

import contextlib
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from grantwire_cli.errors import CommandError, ExitCode
from grantwire_cli.output import Output
from grantwire_cli.session import NOT_CONFIRMED, Options, Session
from grantwire_cli.target import Selection

CONNECTION = "Installation and output"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

Json = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=CONNECTION)]
NoColor = Annotated[
    bool, typer.Option("--no-color", help="Use no colours, as NO_COLOR does.", rich_help_panel=CONNECTION)
]
Profile = Annotated[
    str | None, typer.Option("--profile", help="A profile of the config file.", rich_help_panel=CONNECTION)
]
ApiUrl = Annotated[
    str | None,
    typer.Option("--api", help="The API's address; the token is GRANTWIRE_TOKEN.", rich_help_panel=CONNECTION),
]
StackName = Annotated[
    str | None, typer.Option("--stack-name", help="A CloudFormation stack (extra aws).", rich_help_panel=CONNECTION)
]
Region = Annotated[str | None, typer.Option("--region", help="The stack's AWS region.", rich_help_panel=CONNECTION)]
CheckoutPath = Annotated[
    Path | None, typer.Option("--checkout", help="A checkout with a local stack.", rich_help_panel=CONNECTION)
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0, help="Seconds for a request with its retries.", rich_help_panel=CONNECTION),
]
SHARED: dict[str, Any] = {
    "as_json": (Json, False),
    "no_color": (NoColor, False),
    "profile": (Profile, None),
    "api_url": (ApiUrl, None),
    "stack_name": (StackName, None),
    "region": (Region, None),
    "checkout": (CheckoutPath, None),
    "timeout": (Timeout, None),
}
Function = Callable[..., int | None]


def new_group(help_text: str) -> typer.Typer:
    """Return a group of commands: `grantwire NOUN VERB`."""
    return typer.Typer(help=help_text, no_args_is_help=True, context_settings=CONTEXT)


def register(app: typer.Typer, name: str, *examples: str) -> Callable[[Function], Function]:
    """Register a function as a command with these examples, each of which is a complete command line."""

    def decorate(function: Function) -> Function:
        text = reflow(inspect.getdoc(function) or "")
        add = app.command(name, help=text, epilog=_epilog(examples), context_settings=CONTEXT)
        add(_with_shared_options(function))
        return function

    return decorate


def merge_options(options: Options, values: dict[str, Any]) -> Options:
    """Return options with those that were given in addition; a given one replaces an earlier one."""
    chosen = {name: values[key] for name, key in _SELECTION.items() if values[key] is not None}
    selection = options.selection
    if set(chosen) - {"region"}:
        selection = Selection(
            region=selection.region
        )  # an installation selected after the name replaces the one before
    return Options(
        as_json=options.as_json or values["as_json"],
        no_color=options.no_color or values["no_color"],
        selection=replace(selection, **chosen),
        timeout=options.timeout if values["timeout"] is None else values["timeout"],
    )


_SELECTION = {
    "profile": "profile",
    "api": "api_url",
    "stack_name": "stack_name",
    "region": "region",
    "checkout": "checkout",
}


@contextlib.contextmanager
def reported_errors(options: Options) -> Iterator[None]:
    """Print an expected error with what to try, and exit with its code.

    Wrong usage that a command finds is printed by typer, or as JSON. A reader that has gone away, such as `head`, ends
    the command quietly, and a full disk with an error.
    """
    try:
        yield
    except typer.BadParameter as error:
        if not options.as_json:
            raise
        print_error(CommandError(error.message, hint="See --help.", code="USAGE"), options)
        raise typer.Exit(ExitCode.USAGE) from error
    except CommandError as error:
        print_error(error, options)
        raise typer.Exit(error.exit_code) from error
    except BrokenPipeError as error:
        _drop_output()
        raise typer.Exit(ExitCode.BROKEN_PIPE) from error
    except OSError as error:
        print_error(CommandError(f"Could not read or write: {error}.", code="OS_ERROR"), options)
        _drop_output()
        raise typer.Exit(ExitCode.FAILED) from error


def _drop_output() -> None:
    """Drop what could not be written, which would fail again at the end of the process."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(error: CommandError, options: Options) -> None:
    """Print an error on standard error, as JSON with `--json`."""
    output = Output(as_json=options.as_json, no_color=options.no_color)
    if options.as_json:
        record = {"code": error.code, "message": str(error), "hint": error.hint or None}
        print(json.dumps({"error": record}, ensure_ascii=False), file=sys.stderr)
        return
    if error.code == NOT_CONFIRMED:
        output.message(str(error))
        return
    output.message(f"Error: {error}", style="red")
    if error.hint:
        output.message(error.hint)


def _with_shared_options(function: Function) -> Function:
    @functools.wraps(function)
    def call(**values: Any) -> None:
        shared = {name: values.pop(name) for name in SHARED}
        context = values.pop("_context")
        options = merge_options(context.obj if isinstance(context.obj, Options) else Options(), shared)
        with reported_errors(options):
            session = Session(options)
            with session.closing():
                code = function(session, **values)
        if code:
            raise typer.Exit(code)

    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter("_context", keyword, annotation=typer.Context)]
    added += [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in SHARED.items()
    ]
    parameters = [parameter.replace(kind=keyword) for parameter in own] + added
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del call.__wrapped__  # its annotations would replace these
    return call


def reflow(text: str) -> str:
    """Return text with one line for each paragraph, which the help wraps at the width of the terminal."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _epilog(examples: Sequence[str]) -> str:
    return "\n".join(["", "[bold]Examples[/bold]", *(f"  {escape(example)}" for example in examples)])
