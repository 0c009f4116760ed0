"""The browser for the tests of the console: a Chromium of this machine. It is neither installed nor downloaded here."""

from __future__ import annotations

import os
import shutil

VARIABLE = "GRANTWIRE_CHROMIUM"
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "There is no Chromium, so the tests of the console did not run. Debian: apt install chromium. "
    f"Or name the program of a Chromium or Chrome in {VARIABLE}."
)


def find_browser() -> str | None:
    """Return the path of the browser that the variable names, or of one on the path; None if there is none."""
    named = os.environ.get(VARIABLE, "")
    candidates = (named,) if named else _PROGRAMS
    return next((path for path in map(shutil.which, candidates) if path), None)
