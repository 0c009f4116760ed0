"""Guards: the key of a request or message and the rows of its work, in one PostgreSQL transaction."""
