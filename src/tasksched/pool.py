"""pool: several processes of one worker, watched and started again when they die.

Each process is a worker of its own, with a name, slots and leases of its own; the pool only starts and
ends them. A signal is passed on: they drain within the grace time, a second one ends them at once.
"""

from tasksched.children import LOOK_S, Child, Stop, end_all
from tasksched.settings import Settings


def run_pool(target: str | None, settings: Settings, *flags: str) -> int:
    """``settings.processes`` workers for ``target``; blocks until SIGTERM or SIGINT."""
    environment = settings.with_flags(processes=1).to_environment()
    arguments = ["worker", *flags, *([target] if target else [])]
    children = [Child(f"worker-{n}", arguments) for n in range(1, settings.processes + 1)]
    stop = Stop(children)
    try:
        for child in children:
            child.start(environment)
        while not stop.wait(LOOK_S):
            for child in children:
                child.look(environment)
    finally:
        end_all(children, settings.grace_ms)
    return 0
