"""The console: one HTML document that is assembled from readable files, with the headers that confine it.

The files are ordinary: a page, a style sheet and JavaScript modules. Assembling them into one document makes a version
of the console atomic, and one request loads all of it. It needs no tools: the style sheet is inserted, and so are the
modules, each after those that it imports. A module becomes a function that returns its exports, so its other names
stay its own. Only two forms are therefore allowed: `import { a, b } from "./name.js";`, and `export` in front of a
function, class or constant.

The Content-Security-Policy allows exactly this style sheet and this script, by their hashes, and requests to the
address that served the page. It also forbids the conversion of text to HTML (trusted types), so a mistake in a module
cannot turn content of the API into code.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Self

_STYLE = '<link rel="stylesheet" href="style.css">'
_SCRIPT = '<script type="module" src="app.js"></script>'
_IMPORT = re.compile(r'^import (\{[\w\s,]*\}) from "\./([a-z_]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async function|function|const|class) (\w+))", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b|</script|</style", re.MULTILINE)
_CONFINEMENT = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Console:
    """The document with its headers. Its route is public, so no limiter counts its callers."""

    document: str
    headers: Mapping[str, str]
    limiter: None = None

    @classmethod
    def assemble(cls, folder: Path) -> Self:
        """Read the page, the style sheet and the modules in `folder`. Raises ValueError if they cannot be assembled."""
        style = (folder / "style.css").read_text(encoding="utf-8")
        script = "\n".join(_modules(folder, "app", []))
        document = (folder / "index.html").read_text(encoding="utf-8")
        for reference, inserted in (
            (_STYLE, f"<style>{style}</style>"),
            (_SCRIPT, f'<script type="module">{script}</script>'),
        ):
            if document.count(reference) != 1:
                raise ValueError(f"index.html must contain {reference} once")
            document = document.replace(reference, inserted)
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Security-Policy": _policy(style, script),
            "Cache-Control": "no-cache",  # the browser keeps the document, and asks whether it is current
            "ETag": f'"{hashlib.sha256(document.encode()).hexdigest()[:32]}"',
            **_CONFINEMENT,
        }
        return cls(document, headers)

    def is_current(self, if_none_match: Sequence[str]) -> bool:
        """Return whether a caller with these values of `If-None-Match` already has this document."""
        tags = [tag.strip().removeprefix("W/") for value in if_none_match for tag in value.split(",")]
        return self.headers["ETag"] in tags


def _modules(folder: Path, name: str, done: list[str]) -> list[str]:
    """Return a module after the modules that it imports and that are not `done`."""
    done.append(name)
    text = (folder / f"{name}.js").read_text(encoding="utf-8")
    before: list[str] = []
    for _, imported in _IMPORT.findall(text):
        if imported not in done:
            before += _modules(folder, imported, done)
    exports = ", ".join(exported for _, exported in _EXPORT.findall(text))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = $\2;", text))
    if left := _LEFT.search(body):
        raise ValueError(f"{name}.js contains {left[0]!r}, which cannot be assembled")
    return [*before, f"const ${name} = (() => {{\n{body}return {{ {exports} }};\n}})();\n"]


def _policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy that allows this style sheet and this script and nothing else."""
    directives = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "img-src": "data:",  # the icon of the page
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in directives.items())


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
