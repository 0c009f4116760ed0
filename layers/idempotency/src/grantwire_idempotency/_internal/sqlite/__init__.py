"""SQLite, by the module sqlite3 of the standard library."""
