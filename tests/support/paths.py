"""Paths in the checkout."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYER = ROOT / "layers" / "core" / "python"
LIBRARY_HOME = ROOT / "layers" / "idempotency"
LIBRARY = LIBRARY_HOME / "src"
# For a subprocess that imports tests and the packages of the layer.
PYTHONPATH = f"{ROOT}:{LAYER}:{LIBRARY}"
SQL = ROOT / "infra" / "sql"
FUNCTIONS = ROOT / "functions"
