"""`grantwire import` and `grantwire export`: many entitlements, in files."""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from grantwire_cli.bulk.exports import ExportFile, encode, pages
from grantwire_cli.bulk.imports import Source, Validation, run_import
from grantwire_cli.bulk.lines import Format, detect_format
from grantwire_cli.bulk.results import ResultFile
from grantwire_cli.bulk.sending import Sender
from grantwire_cli.commands.parameters import DryRun, Yes
from grantwire_cli.errors import CommandError, ExitCode
from grantwire_cli.registry import register
from grantwire_cli.session import Session
from grantwire_cli.wording import count_of

PLAIN_INTERVAL_SECONDS = 10.0
REFRESH_SECONDS = 0.1
STDIN = Path("-")
FormatOption = Annotated[Format | None, typer.Option("--format", help="The format (default: by the extension).")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    register(
        app,
        "import",
        "grantwire import purchases.csv --dry-run",
        "grantwire import purchases.csv --results purchases.results.jsonl",
        "zcat purchases.jsonl.gz | grantwire import - --format jsonl --name purchases --results r.jsonl --yes",
    )(import_)
    register(
        app,
        "export",
        "grantwire export entitlements.csv",
        "grantwire export --format jsonl | jq -r 'select(.status == \"ACTIVE\") | .user_id'",
    )(export)


def import_(
    session: Session,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV or JSON Lines; - is standard input.", show_default=False)
    ],
    format_: FormatOption = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The import's name, part of derived keys (default: FILE).")
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--results", help="The result file (default: FILE.results.jsonl).")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=64, help="Requests at the same time.")] = 4,
    patience: Annotated[
        float, typer.Option("--patience", min=0, help="Seconds without a result before it gives up.")
    ] = 300,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Grant, revoke and extend what a file lists. The whole file is validated before anything is sent.

    Fields: operation (grant, revoke, extend), user_id, stock_keeping_unit, reason, purchase_id, and optionally
    starts_at, expires_at and idempotency_key. An extension must have expires_at: the new end, or the word none to
    remove the end. Without a key, the line's content and the import's name make one, so that two equal lines are one
    operation. An interrupted import continues if you run the same command again.
    The exit code is 5 if lines were refused; the result file says why.
    """
    with _open(file) as opened:
        source = Source(opened, format_ or detect_format(file), name or file.name)
        size = source.state()[0]
        with _progress(session, "Validating", size, "bytes") as advance:
            validation = source.validate(advance)
        _check(session, file, validation)
        if dry_run:
            counts = {"lines": validation.lines, **validation.operations, "removed_ends": validation.removed_ends}
            session.output.record({"file": str(file), **counts, "dry_run": True})
            return ExitCode.OK
        if results is None and file == STDIN:
            raise typer.BadParameter("Name the result file with --results.")
        lines = f"{count_of(validation.lines, 'line')} ({_describe(validation)})"
        session.confirm(f"Import {lines} into {session.target.title}?", yes=yes)
        path = results or file.with_name(f"{file.name}.results.jsonl")
        return _send(session, source, validation, path, concurrency=concurrency, patience=patience)


def export(
    session: Session,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="CSV or JSON Lines (default: standard output).")
    ] = None,
    format_: FormatOption = None,
) -> None:
    """Write the current state of all entitlements to a file, or to standard output.

    An interrupted export to a file continues if you run the same command again. `changes_after` of the result is the
    cursor from which `grantwire events tail --after` continues.
    """
    if file is None:
        _export_to_pipe(session, format_ or Format.jsonl)
        return
    if file.exists():
        raise CommandError(f"{file} exists already.", hint="Name another file, or delete it.", code="FILE_EXISTS")
    target = ExportFile(file, format_ or detect_format(file), session.target.api_url)
    with _progress(session, "Exporting", None, "entitlements") as advance:
        count, cursor = target.run(session.api, advance)
    session.output.record({"file": str(file), "entitlements": count, "changes_after": cursor})


def _export_to_pipe(session: Session, format_: Format) -> None:
    heading = True
    for page in pages(session.api):
        sys.stdout.write(encode(format_, page["entitlements"], heading=heading))
        heading = False
    sys.stdout.flush()


def _send(
    session: Session, source: Source, validation: Validation, path: Path, *, concurrency: int, patience: float
) -> int:
    results = ResultFile(path)
    sender = Sender(session.api, concurrency=concurrency, patience=patience, notify=session.warn)
    started_at = time.monotonic()
    try:
        with _progress(session, "Importing", validation.lines, "lines") as advance:
            run_import(source, validation, results, sender, advance)
    except KeyboardInterrupt:
        session.note("Interrupted. Run the same command again to continue.")
        raise
    finally:
        results.close()
    seconds = max(time.monotonic() - started_at, 1e-9)
    rate = round(validation.lines / seconds, 1)
    session.output.record({"lines": validation.lines, **results.counts, "lines_per_second": rate, "results": str(path)})
    return ExitCode.NEGATIVE if results.counts["refused"] else ExitCode.OK


def _describe(validation: Validation) -> str:
    """Return the number of lines of each operation, and of extensions that remove the end."""
    operations = ", ".join(f"{count} {operation}" for operation, count in validation.operations.items())
    removed = validation.removed_ends
    return f"{operations}; {count_of(removed, 'end')} removed" if removed else operations


def _check(session: Session, file: Path, validation: Validation) -> None:
    """Print the problems of the file.

    Raises CommandError if there are any.
    """
    for number, problem in validation.problems:
        session.output.message(f"{file}:{number}: {problem}", style="red")
    if validation.invalid:
        more = validation.invalid - len(validation.problems)
        hidden = f" (the first {len(validation.problems)} are shown)" if more else ""
        are = "is" if validation.invalid == 1 else "are"
        lines = count_of(validation.lines, "line")
        problem = f"{validation.invalid} of {lines} {are} not valid{hidden}. Nothing was sent."
        raise CommandError(problem, hint="Correct the file, then run the command again.", code="INVALID_FILE")
    if not validation.lines:
        raise CommandError(f"{file} has no lines.", code="INVALID_FILE")


@contextlib.contextmanager
def _open(file: Path) -> Iterator[BinaryIO]:
    """Open the file, or a temporary copy of standard input, because it is read twice."""
    if file != STDIN:
        try:
            opened: BinaryIO = file.open("rb")
        except OSError as error:
            raise CommandError(f"Could not read {file}: {error.strerror}.", code="NO_FILE") from error
        with opened:
            yield opened
        return
    with tempfile.TemporaryFile() as copy:
        while block := sys.stdin.buffer.read(1 << 20):
            copy.write(block)
        yield copy


@contextlib.contextmanager
def _progress(session: Session, title: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Provide a function that advances a bar with rate and time left; without a terminal, a line every ten seconds."""
    messages = session.output.messages
    if session.output.as_json or not messages.is_terminal:
        yield _plain_progress(session, title, total, unit)
        return
    from rich import progress as bars  # noqa: PLC0415  # imported only for a terminal

    columns: list[Any] = [bars.TextColumn("{task.description}"), bars.BarColumn()]
    columns += (
        [bars.DownloadColumn(), bars.TransferSpeedColumn()]
        if unit == "bytes"
        else [bars.MofNCompleteColumn(), bars.TextColumn("{task.fields[rate]}")]
    )
    columns += [bars.TimeElapsedColumn(), bars.TextColumn("left"), bars.TimeRemainingColumn()]
    with bars.Progress(*columns, console=messages, transient=True) as bar:
        task = bar.add_task(title, total=total, rate="")

        waiting, shown_at = 0, time.monotonic()

        def show() -> None:
            nonlocal waiting
            bar.advance(task, waiting)
            waiting = 0
            speed = bar.tasks[0].speed
            bar.update(task, rate=f"{speed:,.0f} {unit}/s" if speed else "")

        def advance(count: int) -> None:
            nonlocal waiting, shown_at
            waiting += count
            if time.monotonic() - shown_at > REFRESH_SECONDS:  # a bar is slower than a line
                shown_at = time.monotonic()
                show()

        yield advance
        show()


def _plain_progress(session: Session, title: str, total: int | None, unit: str) -> Callable[[int], None]:
    started_at = printed_at = time.monotonic()
    done = 0

    def advance(count: int) -> None:
        nonlocal done, printed_at
        done += count
        now = time.monotonic()
        if now - printed_at >= PLAIN_INTERVAL_SECONDS:
            printed_at = now
            rate = done / (now - started_at)
            left = f", {(total - done) / rate:,.0f} s left" if total and rate else ""
            session.note(f"{title}: {done}{f' of {total}' if total else ''} {unit}, {rate:,.0f}/s{left}")

    return advance
