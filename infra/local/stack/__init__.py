"""A complete stack: its servers, its database and the deployed template."""
