"""What is handed to sbatch for one submission: options, batch script, the agent's settings."""

from __future__ import annotations

import json

from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.observation import comment_for
from dagster_slurm.allocations.plan import Submit
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.remote.frames import quote
from dagster_slurm.slurm.commands import BOUNDED
from dagster_slurm.slurm.options import sbatch_arguments


def sbatch_options(settings: SessionSettings, shape: EffectiveShape, token: str) -> tuple[str, ...]:
    """The options of one submission, without the batch script."""
    return sbatch_arguments(
        shape,
        job_name=settings.job_name,
        comment=comment_for(settings.session_id, token),
        output=f"{settings.submission_dir(token)}/log",
        cluster=settings.cluster,
    )


def submit_command(settings: SessionSettings, shape: EffectiveShape, token: str) -> tuple[str, ...]:
    """The command that submits; the path of the batch script carries the token as well."""
    options = sbatch_options(settings, shape, token)
    return (*BOUNDED, "sbatch", *options, f"{settings.submission_dir(token)}/batch.sh")


def agent_settings(settings: SessionSettings, shape: EffectiveShape, submit: Submit) -> str:
    """Content of ``agent.json``."""
    return json.dumps(
        {
            "schema_version": 1,
            "role": submit.role,
            "slurm_job_name": settings.job_name,
            "intent": submit.intent,
            "drain_window_seconds": shape.drain_window_seconds,
            "rejoin_timeout_seconds": settings.rejoin_timeout_seconds,
            "orphan_timeout_seconds": settings.orphan_timeout_seconds,
            "head_only": bool(shape.head_only),
            "ray_start_args": list(shape.ray_start_args or ()),
            "ray_resources": dict(shape.ray_resources or {}),
            "python": settings.python,
            "container_command": list(settings.container_command),
            "network_interface": settings.network_interface,
            "setup": settings.setup,
        }
    )


def _outer_python(settings: SessionSettings) -> str:
    """The Python that the batch script starts: with a container the node's own, which then starts the container's."""
    return "python3" if settings.container_command else settings.python


def batch_script(settings: SessionSettings, shape: EffectiveShape, submit: Submit) -> str:
    """The batch script of every submission like this one; it finds its token in ``$token``, which a line before sets.

    Its first act is to rename the claim, ``ready``, to its own. A job that comes up after its submission was dropped
    finds nothing to rename and ends: a marker that is looked at first and acted upon later would not be enough.
    The job itself writes the agent's settings: whoever submits fifty of them waits for every file that it has to make.
    """
    return f"""umask 077
session={quote(settings.session_dir)}
cd "$session/submissions/$token" || exit 1
if ! mv ready "started.$SLURM_JOB_ID" 2>/dev/null && ! [ -e "started.$SLURM_JOB_ID" ]; then
    echo "dagster_slurm: job $SLURM_JOB_ID belongs to a submission that was dropped; it ends without doing anything."
    exit 0
fi
if [ -e "$session/closing" ]; then
    echo "dagster_slurm: the session is ending; job $SLURM_JOB_ID ends without doing anything."
    exit 0
fi
printf %s {quote(agent_settings(settings, shape, submit))} >agent.json || exit 1
cd "$session" || exit 1
{settings.setup}
exec {quote(_outer_python(settings))} -u "$session/lib/dagster_slurm_agent" batch --session "$session" --token "$token"
"""
