"""A payload that knows nothing of Dagster."""

print("a plain payload")
