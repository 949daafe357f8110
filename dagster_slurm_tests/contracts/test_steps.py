"""The simulated commit makes the steps of the shell script, in its order.

What is shown by dying, waiting or looking between two steps of the one is then shown about the other.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dagster_slurm.allocations.observation import Fate
from dagster_slurm.allocations.plan import Cancel, Close, Drain, Effect, Forget, Revoke
from dagster_slurm.remote.scripts import part
from dagster_slurm_tests.contracts.worlds import SimulatedWorld, commit, known, reconcile
from dagster_slurm_tests.fake_slurm import FakeSlurm, fake

__all__ = ["fake"]

#: Steps that only one of them names: the look at the lock right before the rename, what nobody else can tell apart.
SIMULATED_ONLY = {"owner-checked", "released", "before-revoke", "after-drain", "forgotten", "cancelled", "withdrawn"}
SCRIPT_ONLY = {"effects-done"}


def script_steps(fake: FakeSlurm, effects: tuple[Effect, ...], count: int) -> list[str]:
    """Checkpoints that the script passes: those of effects, or those of a reconcile and its note."""
    log = fake.directory / "steps"
    site = fake.site(f'checkpoint() {{ echo "$1" >>{log}; }}\n')
    if effects:
        commit(site, *effects, even_if_closing=True)
    else:
        fake.call(count, site)
    return [step for step in log.read_text().split() if step not in SCRIPT_ONLY]


def simulated_steps(world: SimulatedWorld, effects: tuple[Effect, ...], count: int) -> list[str]:
    before = len(world.site.steps)
    if effects:
        commit(world.site, *effects, even_if_closing=True)
    else:
        reconcile(world.site, count)
    return [step for step in world.site.steps[before:] if step not in SIMULATED_ONLY]


@pytest.mark.parametrize("count", [1, 3, 8, 9, 12])
def test_growing(fake: FakeSlurm, count: int) -> None:
    simulated = simulated_steps(SimulatedWorld(), (), count)
    assert script_steps(fake, (), count) == simulated
    assert simulated.count("after-sbatch") == count


@pytest.mark.parametrize("kind", ["cancel", "drain", "close", "forget", "revoke what was not sent", "revoke what was"])
def test_effects(fake: FakeSlurm, kind: str) -> None:
    world = SimulatedWorld()
    fake.instead("sbatch", "echo 'sbatch: error: Socket timed out' >&2; exit 1")
    fake.call(1)
    world.scheduler.submission_answers = ["nothing"]
    reconcile(world.site, 1)
    (real,), (simulated,) = fake.ledger().worker_submissions, known(world.site.observe()).worker_submissions
    if kind == "revoke what was not sent":
        (fake.session / "submissions" / real / "sent").unlink()
        trace = world.site.files.fates[simulated]
        world.site.files.fates[simulated] = type(trace)(fate=Fate.READY)

    def effect(token: str) -> Effect:
        return {
            "cancel": Cancel(("1",), only_pending=True),
            "drain": Drain(token, "1", 2**31, 60),
            "close": Close(),
            "forget": Forget((token,)),
            "revoke what was not sent": Revoke(token, Fate.READY),
            "revoke what was": Revoke(token, Fate.SENT),
        }[kind]

    assert script_steps(fake, (effect(real),), 0) == simulated_steps(world, (effect(simulated),), 0)


def test_every_checkpoint_of_the_script_has_its_step_in_the_simulation() -> None:
    named = set(re.findall(r"checkpoint ([a-z-]+)$", part("commit.sh"), re.MULTILINE)) - SCRIPT_ONLY
    text = Path(__file__).parents[2].joinpath("dagster_slurm", "testing", "commit.py").read_text()
    effects = {f"{when}-{word}" for when in ("before", "after") for word in ("cancel", "drain")}
    assert {step for step in named if f'"{step}"' not in text} <= effects
