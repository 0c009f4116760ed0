"""Where things are in the checkout."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYER = ROOT / "layers" / "core" / "python"
MIGRATIONS = ROOT / "infra" / "migrations"
SQL = ROOT / "infra" / "sql"
FUNCTIONS = ROOT / "functions"
