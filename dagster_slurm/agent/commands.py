"""The agent's command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from . import gcs
from .batch import run_batch
from .files import Session, read_document
from .node import run_node, say
from .records import Settings


def parser() -> argparse.ArgumentParser:
    """``batch`` is what batch scripts call; the others are started by the agent itself."""
    whole = argparse.ArgumentParser(prog="dagster_slurm_agent")
    commands = whole.add_subparsers(dest="command", required=True)
    for name in ("batch", "node"):
        part = commands.add_parser(name)
        part.add_argument("--session", required=True)
        part.add_argument("--token", required=True)
    part = commands.add_parser("publish")
    for option in ("--address-file", "--output", "--head-job-id", "--token"):
        part.add_argument(option, required=True)
    part = commands.add_parser("drain-node")
    part.add_argument("--address", required=True)
    part.add_argument("--instance", required=True)
    part.add_argument("--remaining-seconds", required=True, type=float)
    return whole


def main(argv: Sequence[str]) -> int:
    """Returns the exit status."""
    os.umask(0o077)
    options = parser().parse_args(argv)
    if options.command == "publish":
        gcs.publish(options.address_file, options.output, options.head_job_id, options.token)
        return 0
    if options.command == "drain-node":
        return gcs.drain_node(options.address, options.instance, "released by Slurm session", options.remaining_seconds)
    session = Session(os.path.abspath(options.session))
    document = read_document(session.submission(options.token, "agent.json"))
    if document is None:
        say(f"{session.submission(options.token, 'agent.json')} is missing or damaged")
        return 1
    settings = Settings.from_json(options.token, document.content)
    return run_batch(session, settings) if options.command == "batch" else run_node(session, settings)
