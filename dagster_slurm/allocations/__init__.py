"""Worker shapes, the ledger, plans and snapshots of a session: pure decisions about allocations."""
