"""The template on a local AWS: read, built and deployed."""
