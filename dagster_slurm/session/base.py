"""What every part of a session shares: the login node, its place there, and the records as last seen."""

from __future__ import annotations

from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import Site
from dagster_slurm.allocations.request import DEFAULT_LIVE_PER_SESSION, DEFAULT_SUBMISSIONS_PER_CALL
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.errors import SessionNotFound
from dagster_slurm.remote.shell import RemoteShell


class SessionBase:
    """The state of ``AllocationSession``; its parts add what can be asked of it.

    Args:
        shell: The login node.
        site: Where the session lives.
        settings: Its place and how its jobs start.
        submissions_per_call: Most submissions of one call.
        live_per_session: Most live allocations.
    """

    def __init__(
        self,
        shell: RemoteShell,
        site: Site,
        settings: SessionSettings,
        *,
        submissions_per_call: int = DEFAULT_SUBMISSIONS_PER_CALL,
        live_per_session: int = DEFAULT_LIVE_PER_SESSION,
    ) -> None:
        self._shell = shell
        self._site = site
        self._settings = settings
        self._submissions_per_call = submissions_per_call
        self._live_per_session = live_per_session
        self._ledger: Ledger | None = None

    @property
    def session_id(self) -> str:
        """Name of the session."""
        return self._settings.session_id

    @property
    def session_dir(self) -> str:
        """Its directory on the cluster."""
        return self._settings.session_dir

    @property
    def job_name(self) -> str:
        """Slurm job name of all its allocations."""
        return self._settings.job_name

    @property
    def address(self) -> str:
        """The login node, for messages."""
        return self._shell.address

    @property
    def known_jobs(self) -> tuple[str, ...]:
        """Job ids that the records named when this process last saw them and that had not ended; asks nobody."""
        records = () if self._ledger is None else self._ledger.records()
        return tuple(record.slurm_job_id for record in records if record.final_state is None)

    def _known(self, observation: Observation) -> Ledger:
        if observation.ledger is None:
            raise SessionNotFound(
                f"The session {self.session_id} has no records in {self.session_dir} on {self.address}.",
                remedy="get it with get_run_allocation_session, which creates it.",
            )
        self._ledger = observation.ledger
        return observation.ledger
