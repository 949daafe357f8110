"""One start of Ray on this node: ``ray start --block`` and, on a head, the process that publishes the cluster file."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping

from .gcs import read_address
from .processes import descendants, end_tree, start
from .raystart import log_tails

#: `ray start --block` ends its processes within about a second; then they are killed.
END_GRACE_SECONDS = 4.0

#: A publisher or drain request that ended is started again after this.
RESTART_SECONDS = 2.0

#: A drain request takes half a second when the GCS answers.
DRAIN_REQUEST_SECONDS = 15.0


class RayChild:
    """The processes of one start. Everything is polled; nothing here blocks but ``end``."""

    def __init__(
        self,
        command: list[str],
        environ: Mapping[str, str],
        cwd: str,
        temp_dir: str,
        instance: str,
        head_address: str | None,
        python: str,
    ) -> None:
        self._environ = environ
        self._temp_dir = temp_dir
        self._instance = instance
        self._head_address = head_address
        self._agent = [python, "-u", os.path.dirname(os.path.abspath(__file__))]
        self._child = start(command, environ, cwd=cwd)
        self._publish_command: list[str] | None = None
        self._publisher: subprocess.Popen[bytes] | None = None
        self._published_at = float("-inf")
        self._drain: subprocess.Popen[bytes] | None = None
        self._drain_started_at = 0.0

    def alive(self) -> bool:
        return self._child.poll() is None

    def child_pids(self) -> list[int]:
        """Processes that are waited for here."""
        return [child.pid for child in (self._child, self._publisher, self._drain) if child is not None]

    def address(self) -> str | None:
        """The cluster's address; None while a head is still starting."""
        return self._head_address or read_address(self._address_file())

    def has_raylet(self) -> bool:
        """Whether the raylet runs: it ends by itself once it has drained, `ray start` does not."""
        return any(process.name.startswith("raylet") for process in descendants(self._child.pid))

    def is_whole(self) -> bool:
        """Whether Ray's control service and raylet both run, as they do on a head."""
        names = [process.name for process in descendants(self._child.pid)]
        return all(any(name.startswith(part) for name in names) for part in ("gcs_server", "raylet"))

    def publish_to(self, output: str, head_job_id: str, token: str) -> None:
        """Keep a publisher running from now on."""
        self._publish_command = [
            *self._agent,
            "publish",
            f"--address-file={self._address_file()}",
            f"--output={output}",
            f"--head-job-id={head_job_id}",
            f"--token={token}",
        ]
        self.tend()

    def stop_publishing(self) -> None:
        self._publish_command = None
        if self._publisher is not None:
            end_tree(self._publisher, grace_seconds=0.0)
            self._publisher = None

    def tend(self) -> None:
        """Start the publisher again when it has ended, end a drain request that hangs."""
        now = time.monotonic()
        ended = self._publisher is None or self._publisher.poll() is not None
        if self._publish_command is not None and ended and now - self._published_at > RESTART_SECONDS:
            self._published_at = now
            self._publisher = start(self._publish_command, self._environ)
        hangs = now - self._drain_started_at > DRAIN_REQUEST_SECONDS
        if hangs and self._drain is not None and self._drain.poll() is None:
            end_tree(self._drain, grace_seconds=0.0)

    def ask_drain(self, address: str, remaining_seconds: float) -> None:
        """Ask the GCS to drain this node, unless a request is still under way. Its effect shows in the cluster file."""
        if self._drain is not None and self._drain.poll() is None:
            return
        self._drain_started_at = time.monotonic()
        self._drain = start(
            [
                *self._agent,
                "drain-node",
                f"--address={address}",
                f"--instance={self._instance}",
                f"--remaining-seconds={remaining_seconds:.0f}",
            ],
            self._environ,
        )

    def end(self, *, read_logs: bool = True) -> str:
        """End all of it; returns the tails of Ray's logs when asked for them."""
        self.stop_publishing()
        if self._drain is not None:
            end_tree(self._drain, grace_seconds=0.0)
        tails = log_tails(self._temp_dir) if read_logs else ""
        end_tree(self._child, grace_seconds=END_GRACE_SECONDS)
        return tails

    def _address_file(self) -> str:
        return os.path.join(self._temp_dir, "ray_current_cluster")
