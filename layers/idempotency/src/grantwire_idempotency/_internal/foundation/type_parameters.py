"""Type parameters with a default, so that `Message` and `Outcome` may be written without one.

Type checkers know `typing_extensions` without an installation. Python itself has no such default before 3.13, and the
library requires no package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Payload = TypeVar("Payload", default=Any)
    Value = TypeVar("Value", default=Any)
else:
    from typing import TypeVar

    Payload = TypeVar("Payload")
    Value = TypeVar("Value")
