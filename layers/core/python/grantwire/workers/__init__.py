"""How any worker works: its budget, its leases, its loop."""
