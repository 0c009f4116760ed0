"""Where things are in the checkout."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYER = ROOT / "layers" / "core" / "python"
LIBRARY = ROOT / "layers" / "idempotency" / "src"
# For a program of its own that imports tests and what the layer ships.
PYTHONPATH = f"{ROOT}:{LAYER}:{LIBRARY}"
MIGRATIONS = ROOT / "infra" / "migrations"
SQL = ROOT / "infra" / "sql"
FUNCTIONS = ROOT / "functions"
