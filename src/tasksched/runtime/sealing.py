"""Sealing: an executor whose payloads and results are encrypted at rest.

The payload is opened before anything else looks at the grant, the result sealed after everything else.
Invariant: handlers, targets and processes for single runs see plain bodies only, records sealed ones only.
What cannot be opened here, or does not belong to this task, is a final failure and nothing is called.
"""

from typing import Any

import msgspec

from tasksched.errors import Invalid
from tasksched.model.outcome import Outcome
from tasksched.model.seal import Bodies
from tasksched.runtime.context import Run
from tasksched.runtime.executor import Executor


class SealedExecutor(Executor):
    """As ``Executor``, with the keys of ``bodies``."""

    def __init__(self, bodies: Bodies, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bodies = bodies

    async def run(self, run: Run) -> Outcome:
        grant = run.grant
        try:
            if grant.payload:
                payload = self._bodies.open_payload(
                    grant.payload, grant.tenant, grant.id, grant.schedule
                )
                run.grant = grant._replace(payload=payload)
        except Invalid as error:
            return self._final(run, error, "payload_not_readable")
        outcome = await super().run(run)
        if not outcome.result:
            return outcome
        try:
            sealed = self._bodies.seal_result(outcome.result, grant.tenant, grant.id)
        except Invalid as error:
            return self._final(run, error, "result_not_serialisable")
        return msgspec.structs.replace(outcome, result=sealed)


def executor_of(bodies: Bodies, *args: Any, **kwargs: Any) -> Executor:
    """An executor for these arguments of ``Executor``; without keys it is a plain one."""
    if bodies.codec is None:
        return Executor(*args, **kwargs)
    return SealedExecutor(bodies, *args, **kwargs)
