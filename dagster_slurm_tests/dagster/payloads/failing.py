"""A payload that fails inside its Pipes session."""

from dagster_pipes import open_dagster_pipes

with open_dagster_pipes() as pipes:
    pipes.log.info("about to fail")
    print("reading the table")
    raise KeyError("no such column")
