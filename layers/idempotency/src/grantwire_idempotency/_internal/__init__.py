"""The implementation, grouped by capability. Only the library imports it; its names can change with every version."""
