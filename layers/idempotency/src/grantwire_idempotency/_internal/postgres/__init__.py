"""PostgreSQL through psycopg: connections of the user or of the library, transactions, and the driver's errors."""
