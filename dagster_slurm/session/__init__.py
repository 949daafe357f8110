"""Sessions: observe, decide, commit, in that order and nothing else. No decision is made here."""
