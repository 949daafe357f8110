"""What runs inside Slurm allocations: one program for every node of every allocation of a session.

Standard library and ray only. The directory is shipped as it is to ``<session>/lib/dagster_slurm_agent``
and never imports the rest of ``dagster_slurm``.

**What the batch script has to do.** Fate rename, look at ``closing``, write ``agent.json``, the user's setup lines,
then::

    #SBATCH --signal=B:USR1@<drain_window_seconds>
    exec <python> -u <session>/lib/dagster_slurm_agent batch --session <session> --token <token>

``exec`` matters: the signals ``USR1`` (walltime nears: drain) and ``TERM`` (end now) have to reach the agent.
``<python>`` must be able to import ray. Output of the agent and of Ray's own start goes to the job's log.

**Files that must exist before the agent starts** (all below ``<session>``):

- ``submissions/<token>/agent.json``: ``role``, ``slurm_job_name``, ``intent``, ``drain_window_seconds``,
  ``rejoin_timeout_seconds``, ``orphan_timeout_seconds``, ``head_only``, ``ray_start_args``, ``ray_resources``,
  ``python``, ``container_command``, ``network_interface``.
- ``ray.token``: Ray's token, mode 0600.
- ``allocation.json``: the ledger. Its ``head`` names, by ``slurm_job_id``, which allocation leads; while no head is
  recorded it is the one open submission of role ``head``, by its token. ``role`` in ``agent.json`` is information only,
  so a promoted successor or an elected worker becomes the head without a restart. One that ``election`` names brings up
  Ray's head and takes no payload before it is the ``head``; the ``successor`` waits without Ray until it is claimed.
- ``lease``: touched by whoever uses the session. Missing counts as untouched since the agent started.
- ``nodes/``, ``cluster/``, ``payloads/`` are created when they are missing.

**Files that the agent writes**: ``nodes/<job>.<node>.json`` (report; its mtime is also the agent's probe of the
filesystem's clock), ``cluster/<head job>.json`` (removed when that head ends in order), ``payloads/<id>/claim.<job>``,
``status.json`` and ``log`` there, ``submissions/<token>/signal.USR1`` and ``signal.TERM`` (a batch step with several
nodes passes its signals on), and ``closing`` when the lease has run out.

**Environment that a user can set in the setup lines**: ``DAGSTER_SLURM_NODE_IP`` (address Ray binds to and publishes),
``DAGSTER_SLURM_OBJECT_STORE_BYTES`` (size of Ray's object store on each node), ``TMPDIR`` (node-local directory for
Ray's files; too long a path for Unix sockets falls back to ``/tmp``).

**Environment that Ray's tasks and payloads find**: ``DAGSTER_SLURM_SESSION_DIR``, ``DAGSTER_SLURM_NODE_FILE`` (this
node's report), payloads also ``DAGSTER_SLURM_WORK_FILE`` and ``RAY_ADDRESS``; nothing of the job step (``SLURM_*``).

**Exit status**: 0 after a drain, ``closing``, ``TERM``, a lease that ran out or no head for ``rejoin_timeout_seconds``;
1 when Ray cannot be started or joined (the reason is in the log and in ``nodes/<job>.<node>.json``).
"""
