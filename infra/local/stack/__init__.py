"""A whole stack: its servers, its database and the deployed template."""
