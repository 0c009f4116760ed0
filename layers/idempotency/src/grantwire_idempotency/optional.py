"""Packages that only some parts of the library need."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def needs(package: str, *, for_what: str, instead: str = "") -> Iterator[None]:
    """Around the import of an optional package: say which one to install if it is missing.

    Raises ImportError, as any import of a missing package does. An error inside an installed package stays as it is.
    """
    module = package.replace("-", "_")
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        advice = f"; or {instead}" if instead else ""
        raise ImportError(
            f"{for_what} needs the package {package}, which is not installed: pip install {package}{advice}",
            name=module,
        ) from error
