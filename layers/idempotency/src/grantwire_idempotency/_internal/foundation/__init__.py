"""The small parts that all others use. They import no other package of the library."""
