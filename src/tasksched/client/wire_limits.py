"""Wire limits: queues, tenants and concurrency keys as the HTTP API writes them. As ``wire``."""

from typing import Any

import msgspec

from tasksched.commands.tenant_purge import Purged
from tasksched.model.limits import QueueRules, QueueState, TenantRules, TenantState
from tasksched.model.task import Concurrency


def concurrency_members(concurrency: Concurrency | None) -> dict[str, Any]:
    if concurrency is None:
        return {}
    return {"concurrency_key": concurrency.key, "concurrency_limit": concurrency.limit}


def concurrency_of(key: str | None, limit: int | None) -> Concurrency | None:
    return None if key is None else Concurrency(key, limit or 1)


def _rules(kind: Any, view: dict[str, Any]) -> Any:
    known = {name: view[name] for name in kind.__struct_fields__ if name in view}
    return msgspec.convert(known, kind)


def read_queue(view: dict[str, Any]) -> QueueState:
    return QueueState(
        name=view["name"],
        version=view.get("version", 0),
        rules=_rules(QueueRules, view),
        counts=view.get("counts", {}),
        in_use=view.get("in_use", 0),
        allotted=view.get("allotted", 0),
        paused_by=view.get("paused_by"),
    )


def read_tenant(view: dict[str, Any]) -> TenantState:
    usage = view.get("usage", {})
    return TenantState(
        name=view["tenant"],
        version=view.get("version", 0),
        rules=_rules(TenantRules, view),
        unfinished=usage.get("unfinished", 0),
        running=usage.get("running", 0),
    )


def read_purged(view: dict[str, Any]) -> Purged:
    return Purged(
        tasks=view.get("tasks", 0),
        recurring_tasks=view.get("recurring_tasks", 0),
        webhooks=view.get("webhooks", 0),
        api_keys=view.get("api_keys", 0),
        left=view.get("left", 0),
        running=view.get("running", 0),
        done=view["done"],
    )
