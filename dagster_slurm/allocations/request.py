"""What one call of ``reconcile_workers`` asks for, and what its earlier attempts may have done already."""

from __future__ import annotations

import attrs

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import ConfigurationError

DEFAULT_SUBMISSIONS_PER_CALL = 50
DEFAULT_LIVE_PER_SESSION = 200


@attrs.frozen(kw_only=True)
class Seen:
    """What a policy's snapshot contained, as far as a decision has to check it again.

    Attributes:
        observed_at: Login node's clock of the snapshot.
        head_job_id: The head in it; None when the session had no job id for it yet.
        slurm_job_ids: Every allocation in it.
    """

    observed_at: int
    head_job_id: str | None
    slurm_job_ids: frozenset[str]


@attrs.frozen(kw_only=True)
class WorkerRequest:
    """What one call of ``reconcile_workers`` asks for.

    Attributes:
        intents: One or several, with different keys.
        seen: The snapshot that the policy decided on; None skips the checks of age and head.
        max_observation_age: Seconds after which ``seen`` is too old to submit on.
        max_submissions: Most submissions of this call; None means the session's limit only.
        release: Job ids to release, whatever the order of scale-in.
        submissions_per_call: Session's limit on submissions in one call.
        live_per_session: Session's limit on live allocations.
        own_tokens: Tokens that earlier attempts of this call planned. Their commits may have been done although no
            answer came: those the ledger knows count against the budget of this call.
        own_expired: Job ids that earlier attempts of this call found pending for too long: not replaced by this call.

    Raises:
        ConfigurationError: a request that makes no sense; ``field`` names the argument.
    """

    intents: tuple[WorkerIntent, ...]
    seen: Seen | None = None
    max_observation_age: float = 300
    max_submissions: int | None = None
    release: frozenset[str] = frozenset()
    submissions_per_call: int = DEFAULT_SUBMISSIONS_PER_CALL
    live_per_session: int = DEFAULT_LIVE_PER_SESSION
    own_tokens: frozenset[str] = frozenset()
    own_expired: frozenset[str] = frozenset()

    def __attrs_post_init__(self) -> None:
        keys = [intent.key for intent in self.intents]
        doubled = sorted({key for key in keys if keys.count(key) > 1})
        if doubled:
            raise ConfigurationError(f"two intents have the key {doubled[0]!r}", field="WorkerIntent.key")
        budget = self.max_submissions
        if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or budget < 0):
            raise ConfigurationError(
                f"max_submissions must be a whole number of at least 0, or None, not {budget!r}",
                field="max_submissions",
            )
        if not self.max_observation_age > 0:
            raise ConfigurationError(
                f"max_observation_age must be above 0 seconds, not {self.max_observation_age}",
                field="max_observation_age",
            )
