"""Imports of optional packages, which only some parts of the library require."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def optional_package(package: str, *, used_by: str, alternative: str = "", module: str = "") -> Iterator[None]:
    """Wrap the import of an optional package: raise ImportError that says which package to install if it is missing.

    `module` is its module, if that has another name. An ImportError from inside an installed package is not changed.
    """
    module = module or package.replace("-", "_")
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        advice = f"; or {alternative}" if alternative else ""
        raise ImportError(
            f"{used_by} requires the package {package}, which is not installed: pip install {package}{advice}",
            name=module,
        ) from error
