"""The console's page: what the function serves, and what the page may do."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any

import pytest

from functions.console.handler import PAGE, handler
from grantwire.api.console import Console
from tests.support.client import event
from tests.support.contract import assert_matches_contract

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 200_000
PATH = "/console"
NO_CALLER: dict[str, Any] = {"requestContext": {"requestId": "r"}}


@pytest.fixture(scope="module")
def console() -> Console:
    """The assembled page."""
    return Console.assemble(PAGE)


def get(headers: dict[str, str] | None = None, method: str = "GET") -> dict[str, Any]:
    """Return the response to a request without a token, which must match openapi.yaml."""
    response = handler(event(method, PATH, headers=headers or {}) | NO_CALLER, None)
    assert_matches_contract(method, PATH, response["statusCode"], response["headers"], response["body"])
    return response


def test_page_is_served_without_a_token() -> None:
    """T5: the page is public. It must not be framed, sniffed or kept without a check."""
    response = get()
    assert response["statusCode"] == 200
    assert response["body"].startswith("<!doctype html>")
    assert response["headers"]["Content-Type"] == "text/html; charset=utf-8"
    assert response["headers"]["Cache-Control"] == "no-cache"
    assert response["headers"]["X-Content-Type-Options"] == "nosniff"
    assert response["headers"]["X-Frame-Options"] == "DENY"
    assert response["headers"]["Referrer-Policy"] == "no-referrer"


def test_browser_that_has_the_page_gets_no_second_copy() -> None:
    """T5: 304 for the current tag, also in a list and weakened by a proxy; the page for any other."""
    tag = get()["headers"]["ETag"]
    for value in (tag, f"W/{tag}", f'"other", {tag}'):
        response = get({"If-None-Match": value})
        assert (response["statusCode"], response["body"], response["headers"]["ETag"]) == (304, "", tag)
    for value in ('"other"', tag.strip('"'), ""):
        assert get({"If-None-Match": value})["statusCode"] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_other_methods_are_not_allowed(method: str) -> None:
    """T5: 405 with `Allow`, as for every route."""
    response = get(method=method)
    assert (response["statusCode"], response["headers"]["Allow"]) == (405, "GET")


def test_page_is_smaller_than_its_limit(console: Console) -> None:
    """T5: all of it, uncompressed."""
    assert len(console.document.encode()) < MAX_BYTES


def test_policy_allows_exactly_the_script_and_the_style_of_the_page(console: Console) -> None:
    """T5: their hashes are those of the text that a browser sees, and everything else is forbidden."""
    policy = dict(directive.split(" ", 1) for directive in console.headers["Content-Security-Policy"].split("; "))
    for directive, tag in (("script-src", "script"), ("style-src", "style")):
        (text,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", console.document, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.pop(directive) == f"'sha256-{digest}'"
    assert policy == {
        "default-src": "'none'",
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


def test_page_loads_nothing_from_elsewhere(console: Console) -> None:
    """T5: the only addresses are names of XML namespaces."""
    without_comments = re.sub(r"^\s*//.*$", "", console.document, flags=re.MULTILINE)
    addresses = re.findall(r"\b(?:https?:|wss?:)?//[\w.]+[\w/.-]*", without_comments)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}
    loading = r"<(?:script|link|img|iframe|object|embed)\b[^>]*\b(?:src|href)=\"(?!data:)"
    assert not re.findall(loading, console.document)
    assert "@import" not in console.document
    assert "url(" not in console.document


def test_page_has_no_inline_handlers_and_no_inline_styles() -> None:
    """T5: the policy would block them, and the page would be broken."""
    markup = (PAGE / "index.html").read_text()
    assert not re.findall(r"\s(?:on\w+|style)=", markup)


def test_changed_file_changes_tag_and_policy(tmp_path: Path) -> None:
    """T5: a browser never combines two versions."""
    before = Console.assemble(_page(tmp_path, "export const a = 1;\n"))
    after = Console.assemble(_page(tmp_path, "export const a = 2;\n"))
    assert before.headers["ETag"] != after.headers["ETag"]
    assert before.headers["Content-Security-Policy"] != after.headers["Content-Security-Policy"]


def test_modules_are_assembled_after_those_that_they_import(tmp_path: Path) -> None:
    """T5: each module once, with its own names, and its exports as the importing module names them."""
    files = {
        "b.js": 'import { c } from "./c.js";\nconst own = 1;\nexport function b() {}\n',
        "c.js": "export const c = 3;\nexport class C {}\n",
    }
    source = 'import {\n  b,\n} from "./b.js";\nimport { c } from "./c.js";\nconst own = 2;\n'
    document = Console.assemble(_page(tmp_path, source, **files)).document
    (script,) = re.findall(r'<script type="module">(.*?)</script>', document, re.DOTALL)
    assert script == (
        "const $c = (() => {\nconst c = 3;\nclass C {}\nreturn { c, C };\n})();\n\n"
        "const $b = (() => {\nconst { c } = $c;\nconst own = 1;\nfunction b() {}\nreturn { b };\n})();\n\n"
        "const $app = (() => {\nconst {\n  b,\n} = $b;\nconst { c } = $c;\nconst own = 2;\nreturn {  };\n})();\n"
    )


@pytest.mark.parametrize(
    "source",
    [
        'import * as all from "./b.js";\n',
        'import other from "https://example.com/x.js";\n',
        "export default function f() {}\n",
        "export let a = 1;\n",
        'const text = "</script>";\n',
    ],
)
def test_module_that_cannot_be_assembled_is_an_error(tmp_path: Path, source: str) -> None:
    """T5: a form that would be wrong after assembling is refused, not served."""
    with pytest.raises(ValueError, match=r"app\.js contains"):
        Console.assemble(_page(tmp_path, source))


def test_page_without_a_place_for_its_script_is_an_error(tmp_path: Path) -> None:
    """T5: it would be served without its script."""
    folder = _page(tmp_path, "")
    (folder / "index.html").write_text('<link rel="stylesheet" href="style.css">')
    with pytest.raises(ValueError, match=r"app\.js"):
        Console.assemble(folder)


def _page(folder: Path, source: str, **files: str) -> Path:
    (folder / "index.html").write_text(
        '<link rel="stylesheet" href="style.css"><script type="module" src="app.js"></script>'
    )
    for name, text in {"style.css": "a {}\n", "app.js": source, **files}.items():
        (folder / name).write_text(text)
    return folder
