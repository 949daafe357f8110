"""Speed and cost, each against the bare command in the same run. ``make bench`` prints the table."""
