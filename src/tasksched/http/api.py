"""The API: the route table, the middleware, and the application made of them.

The table is the one place where a path meets its handler, the scope that it needs, its shapes and its
parameters; routing, the guard and ``/openapi.json`` are all made from it. The application has no exception handling of its own: errors
rise to ``Problems``, which answers them all in one form. Routes of pages without a description (the
documentation and its files) stand apart.
"""

from collections.abc import Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp

from tasksched.http import (
    audit,
    batch,
    callbacks,
    dead_letters,
    docs,
    gate,
    guard,
    limits,
    live,
    middleware,
    operations,
    problem_pages,
    recurring,
    system,
    tasks,
    tenant_export,
    webhooks,
)
from tasksched.http.exchange import JSON, Endpoint, Handler, Reply
from tasksched.http.openapi import Op, OpScope, describe
from tasksched.http.schema import (
    AttemptPage,
    BatchView,
    ChangedView,
    ChangesBody,
    CountView,
    CreatedView,
    HealthView,
    NothingBody,
    ProblemKindView,
    StatsView,
    StatusView,
    TaskBody,
    TaskPage,
    TaskView,
    WorkerPage,
)
from tasksched.http.schema_audit import AuditPage
from tasksched.http.schema_bulk import (
    DeadBulkBody,
    DeletedView,
    GroupPage,
    OperationPage,
    OperationView,
    RedriveChangesBody,
    TaskBulkBody,
    TaskEditBody,
)
from tasksched.http.schema_limits import (
    EverythingView,
    QueueBody,
    QueuePage,
    QueueView,
    TenantBody,
    TenantPage,
    TenantPurgeBody,
    TenantPurgeView,
    TenantView,
)
from tasksched.http.schema_live import (
    CompleteBody,
    FailBody,
    HeardView,
    HeartbeatBody,
    LinePage,
    ReportedView,
)
from tasksched.http.schema_recurring import (
    BackfillBody,
    BackfillView,
    LedgerPage,
    NextView,
    PreviewBody,
    PreviewView,
    RecurringBody,
    RecurringChangesBody,
    RecurringPage,
    RecurringView,
    RemovedView,
    TriggeredView,
)
from tasksched.http.schema_webhooks import (
    DeliveryPage,
    DeliveryView,
    RemovedWebhookView,
    RotateBody,
    TenantSecretView,
    WebhookBody,
    WebhookChangesBody,
    WebhookPage,
    WebhookView,
)
from tasksched.http.services import Call, Services

__all__ = ["OPS", "Services", "make_api"]

_TENANT = ("Tasksched-Tenant",)
_WRITES = (*_TENANT, "Durability")
_CREATES = (*_WRITES, "Idempotency-Key", "traceparent")
_CHANGES = (*_WRITES, "If-Match")
_FILTER = ("?status", "?queue", "?priority", "?handler", "?tag", "?due_from", "?due_to")
_PAGE = (*_TENANT, *_FILTER, "?limit", "?cursor")
_BAD = (400, 413, 415, 422)
_GROUPS = (*_TENANT, "?queue", "?handler", "?reason", "?fingerprint")
_DEAD = (*_GROUPS, "?tag", "?finished_from", "?finished_to")
_CALLBACK = ("Tasksched-Callback-Token",)

_TASK = {"application/json": TaskBody}
_BATCH = {"application/json": (TaskBody,), "application/x-ndjson": TaskBody}
_EDIT = {"application/json": ChangesBody, "application/merge-patch+json": ChangesBody}
_RECURRING = {"application/json": RecurringBody}
_RECURRING_EDIT = {
    "application/json": RecurringChangesBody,
    "application/merge-patch+json": RecurringChangesBody,
}
_PREVIEW = {"application/json": PreviewBody}
_BACKFILL = {"application/json": BackfillBody}
_WEBHOOK = {"application/json": WebhookBody}
_WEBHOOK_EDIT = {
    "application/json": WebhookChangesBody,
    "application/merge-patch+json": WebhookChangesBody,
}
_ROTATE = {"application/json": RotateBody}
_MATCHES = (*_TENANT, "If-Match")
_NO_OPTIONS = {"application/json": NothingBody}
_OPERATION = {200: OperationView, 202: OperationView}


async def openapi(_: Call) -> Reply:
    """This description of the API."""
    return Reply(200, DOCUMENT, [JSON])


# fmt: off
OPS: Final[tuple[Op, ...]] = (
    Op("POST", "/tasks", "tasks:write", tasks.create, {201: CreatedView, 200: TaskView}, _TASK, (*_CREATES, "Prefer", "?wait"), (429, *_BAD)),
    Op("GET", "/tasks", "tasks:read", tasks.list_, {200: TaskPage}, {}, _PAGE, (400, 422)),
    Op("POST", "/tasks/batch", "tasks:write", batch.create_many, {200: BatchView}, _BATCH, _CREATES, _BAD),
    Op("GET", "/tasks/count", "tasks:read", tasks.count, {200: CountView}, {}, _TENANT),
    Op("POST", "/tasks/cancel", "tasks:write", operations.cancel_many, _OPERATION, {"application/json": TaskBulkBody}, _TENANT, (429, *_BAD)),
    Op("POST", "/tasks/edit", "tasks:write", operations.edit_many, _OPERATION, {"application/json": TaskEditBody}, _TENANT, (429, *_BAD)),
    Op("POST", "/tasks/delete", "tasks:write", operations.delete_many, _OPERATION, {"application/json": TaskBulkBody}, _TENANT, (429, *_BAD)),
    Op("GET", "/tasks/{id}", "tasks:read", tasks.get, {200: TaskView, 304: None}, {}, (*_TENANT, "If-None-Match", "Prefer", "?wait"), (404,)),
    Op("PATCH", "/tasks/{id}", "tasks:write", tasks.edit, {200: TaskView}, _EDIT, _CHANGES, (404, 409, 412, *_BAD)),
    Op("DELETE", "/tasks/{id}", "tasks:write", tasks.delete, {200: DeletedView}, _NO_OPTIONS, (*_TENANT, "If-Match"), (404, 409, 412)),
    Op("POST", "/tasks/{id}/cancel", "tasks:write", tasks.cancel, {200: ChangedView, 202: ChangedView}, _NO_OPTIONS, _CHANGES, (404, 409, 412)),
    Op("POST", "/tasks/{id}/run-now", "tasks:write", tasks.run_now, {200: ChangedView}, _NO_OPTIONS, _CHANGES, (404, 409, 412)),
    Op("POST", "/tasks/{id}/retry", "tasks:write", tasks.retry, {200: ChangedView}, {"application/json": RedriveChangesBody}, _CHANGES, (404, 409, 412, *_BAD)),
    Op("GET", "/tasks/{id}/attempts", "tasks:read", tasks.attempts, {200: AttemptPage}, {}, _TENANT, (404,)),
    Op("GET", "/tasks/{id}/log", "tasks:read", live.log, {200: LinePage}, {}, (*_TENANT, "?after", "?line_limit", "Last-Event-ID"), (400, 404, 422, 429)),
    Op("POST", "/tasks/{id}/heartbeat", "callback", callbacks.heartbeat, {200: HeardView}, {"application/json": HeartbeatBody}, _CALLBACK, (404, 409, *_BAD)),
    Op("POST", "/tasks/{id}/complete", "callback", callbacks.complete, {200: ReportedView}, {"application/json": CompleteBody}, (*_CALLBACK, "Durability"), (404, 409, *_BAD)),
    Op("POST", "/tasks/{id}/fail", "callback", callbacks.fail, {200: ReportedView}, {"application/json": FailBody}, (*_CALLBACK, "Durability"), (404, 409, *_BAD)),
    Op("GET", "/events", "tasks:read", live.events, {200: "text/event-stream"}, {}, (*_TENANT, "?task_id", "?queue", "?status", "Last-Event-ID"), (400, 422, 429)),
    Op("POST", "/recurring-tasks", "recurring:write", recurring.create, {201: RecurringView, 200: RecurringView}, _RECURRING, _CREATES, (409, *_BAD)),
    Op("GET", "/recurring-tasks", "recurring:read", recurring.list_, {200: RecurringPage}, {}, (*_TENANT, "?recurring_status", "?limit", "?cursor"), (400, 422)),
    Op("GET", "/recurring-tasks/{id}", "recurring:read", recurring.get, {200: RecurringView}, {}, _TENANT, (404,)),
    Op("PUT", "/recurring-tasks/{id}", "recurring:write", recurring.put, {201: RecurringView, 200: RecurringView}, _RECURRING, (*_CHANGES, "If-None-Match *"), (412, 428, *_BAD)),
    Op("PATCH", "/recurring-tasks/{id}", "recurring:write", recurring.edit, {200: RecurringView}, _RECURRING_EDIT, _CHANGES, (404, 412, 428, *_BAD)),
    Op("DELETE", "/recurring-tasks/{id}", "recurring:write", recurring.remove, {200: RemovedView}, _NO_OPTIONS, _CHANGES, (404, 412, 428)),
    Op("POST", "/recurring-tasks/{id}/pause", "recurring:write", recurring.pause, {200: RecurringView}, _NO_OPTIONS, _CHANGES, (404, 409, 412)),
    Op("POST", "/recurring-tasks/{id}/resume", "recurring:write", recurring.resume, {200: RecurringView}, _NO_OPTIONS, _CHANGES, (404, 409, 412)),
    Op("POST", "/recurring-tasks/{id}/trigger", "recurring:write", recurring.trigger, {201: TriggeredView}, _NO_OPTIONS, _WRITES, (404,)),
    Op("POST", "/recurring-tasks/{id}/backfill", "recurring:write", recurring.backfill, {200: BackfillView}, _BACKFILL, _WRITES, (404, *_BAD)),
    Op("GET", "/recurring-tasks/{id}/next", "recurring:read", recurring.next_fires, {200: NextView}, {}, (*_TENANT, "?n"), (404, 422)),
    Op("GET", "/recurring-tasks/{id}/runs", "recurring:read", recurring.runs, {200: LedgerPage}, {}, _TENANT, (404,)),
    Op("POST", "/webhooks", "operate", webhooks.create, {201: WebhookView}, _WEBHOOK, _TENANT, (409, *_BAD)),
    Op("GET", "/webhooks", "tasks:read", webhooks.list_, {200: WebhookPage}, {}, (*_TENANT, "?limit", "?cursor"), (400, 422)),
    Op("POST", "/webhooks/rotate-tenant-secret", "operate", webhooks.rotate_tenant_secret, {200: TenantSecretView}, _ROTATE, _TENANT, _BAD),
    Op("GET", "/webhooks/{id}", "tasks:read", webhooks.get, {200: WebhookView}, {}, _TENANT, (404,)),
    Op("PATCH", "/webhooks/{id}", "operate", webhooks.edit, {200: WebhookView}, _WEBHOOK_EDIT, _MATCHES, (404, 412, 428, *_BAD)),
    Op("DELETE", "/webhooks/{id}", "operate", webhooks.remove, {200: RemovedWebhookView}, _NO_OPTIONS, _MATCHES, (404, 412, 428)),
    Op("POST", "/webhooks/{id}/enable", "operate", webhooks.enable, {200: WebhookView}, _NO_OPTIONS, _MATCHES, (404, 412)),
    Op("POST", "/webhooks/{id}/disable", "operate", webhooks.disable, {200: WebhookView}, _NO_OPTIONS, _MATCHES, (404, 412)),
    Op("POST", "/webhooks/{id}/rotate-secret", "operate", webhooks.rotate_secret, {200: WebhookView}, _ROTATE, _MATCHES, (404, 412, *_BAD)),
    Op("POST", "/webhooks/{id}/test", "operate", webhooks.test, {202: DeliveryView}, _NO_OPTIONS, _TENANT, (404, 409)),
    Op("GET", "/webhooks/{id}/deliveries", "tasks:read", webhooks.deliveries, {200: DeliveryPage}, {}, (*_TENANT, "?status", "?limit", "?cursor"), (400, 404, 422)),
    Op("POST", "/webhooks/{id}/deliveries/{delivery}/replay", "operate", webhooks.replay, {202: DeliveryView}, _NO_OPTIONS, _TENANT, (404, 409)),
    Op("POST", "/preview", "recurring:read", recurring.preview, {200: PreviewView}, _PREVIEW, (), _BAD),
    Op("GET", "/dead-letters", "tasks:read", dead_letters.dead_list, {200: TaskPage}, {}, (*_DEAD, "?limit", "?cursor"), (400, 422)),
    Op("GET", "/dead-letters/groups", "tasks:read", dead_letters.dead_groups, {200: GroupPage}, {}, (*_GROUPS, "?group_limit", "?cursor"), (400, 422)),
    Op("POST", "/dead-letters/redrive", "tasks:write", dead_letters.dead_redrive, _OPERATION, {"application/json": DeadBulkBody}, _TENANT, (429, *_BAD)),
    Op("POST", "/dead-letters/purge", "tasks:write", dead_letters.dead_purge, _OPERATION, {"application/json": DeadBulkBody}, _TENANT, (429, *_BAD)),
    Op("GET", "/operations", "tasks:read", operations.operations_list, {200: OperationPage}, {}, (*_TENANT, "?limit", "?cursor"), (400, 422)),
    Op("GET", "/operations/{id}", "tasks:read", operations.operation_get, {200: OperationView}, {}, _TENANT, (404,)),
    Op("POST", "/operations/{id}/stop", "tasks:write", operations.operation_stop, {200: OperationView}, _NO_OPTIONS, _TENANT, (404, 409)),
    Op("GET", "/tenants", "tasks:read", limits.tenant_list, {200: TenantPage}, {}, (*_TENANT, "?limit", "?cursor"), (400, 422)),
    Op("GET", "/tenants/{tenant}", "tasks:read", limits.tenant_get, {200: TenantView}, {}, _TENANT, (404,)),
    Op("PUT", "/tenants/{tenant}", "namespace", limits.tenant_put, {200: TenantView}, {"application/json": TenantBody}, _MATCHES, (404, 409, 412, *_BAD)),
    Op("POST", "/tenants/{tenant}/pause", "namespace", limits.tenant_pause, {200: TenantView}, _NO_OPTIONS, _TENANT, (404,)),
    Op("POST", "/tenants/{tenant}/drain", "namespace", limits.tenant_drain, {200: TenantView}, _NO_OPTIONS, _TENANT, (404,)),
    Op("POST", "/tenants/{tenant}/resume", "namespace", limits.tenant_resume, {200: TenantView}, _NO_OPTIONS, _TENANT, (404,)),
    Op("POST", "/tenants/{tenant}/purge", "namespace", limits.tenant_purge, {200: TenantPurgeView}, {"application/json": TenantPurgeBody}, _TENANT, (404, *_BAD)),
    Op("GET", "/tenants/{tenant}/export", "operate", tenant_export.export, {200: tenant_export.LINES}, {}, _TENANT, (404, 429)),
    Op("GET", "/queues", "tasks:read", limits.queue_list, {200: QueuePage}, {}, (*_TENANT, "?limit", "?cursor"), (400, 422)),
    Op("GET", "/queues/{queue}", "tasks:read", limits.queue_get, {200: QueueView}, {}, _TENANT, (404,)),
    Op("PUT", "/queues/{queue}", "namespace", limits.queue_put, {200: QueueView}, {"application/json": QueueBody}, _MATCHES, (404, 409, 412, *_BAD)),
    Op("POST", "/queues/{queue}/pause", "namespace", limits.queue_pause, {200: QueueView}, _NO_OPTIONS, _TENANT, (404,)),
    Op("POST", "/queues/{queue}/drain", "namespace", limits.queue_drain, {200: QueueView}, _NO_OPTIONS, _TENANT, (404,)),
    Op("POST", "/queues/{queue}/resume", "namespace", limits.queue_resume, {200: QueueView}, _NO_OPTIONS, _TENANT, (404,)),
    Op("POST", "/queues/{queue}/share/pause", "operate", limits.share_pause, {200: QueueView}, _NO_OPTIONS, _TENANT, (404,)),
    Op("POST", "/queues/{queue}/share/resume", "operate", limits.share_resume, {200: QueueView}, _NO_OPTIONS, _TENANT, (404,)),
    Op("POST", "/pause", "namespace", limits.everything_pause, {200: EverythingView}, _NO_OPTIONS),
    Op("POST", "/resume", "namespace", limits.everything_resume, {200: EverythingView}, _NO_OPTIONS),
    Op("GET", "/audit", "admin", audit.page, {200: AuditPage}, {}, (*_TENANT, "?limit", "?cursor"), (400, 422)),
    Op("GET", "/workers", "metrics", system.workers, {200: WorkerPage}),
    Op("GET", "/stats", "metrics", system.stats, {200: StatsView}),
    Op("GET", "/health", "public", system.health, {200: HealthView, 503: HealthView}),
    Op("GET", "/livez", "public", system.livez, {200: StatusView}),
    Op("GET", "/readyz", "public", system.readyz, {200: StatusView}, refuses=(503,)),
    Op("GET", "/healthz", "public", system.healthz, {200: StatusView}, refuses=(503,)),
    Op("GET", "/metrics", "metrics", system.metrics, {200: "text/plain"}),
    Op("GET", "/problems/{code}", "public", problem_pages.problem, {200: ProblemKindView}, refuses=(404,)),
    Op("GET", "/openapi.json", "public", openapi, {200: {"type": "object"}}),
)
# fmt: on

Page = tuple[str, OpScope, Handler[Services]]
DOCUMENT: Final = describe(OPS)

PAGES: Final[tuple[Page, ...]] = (
    ("/docs", "public", docs.page),
    ("/docs/docs.js", "public", docs.script),
    ("/docs/docs.css", "public", docs.style),
)


def make_api(services: Services) -> Starlette:
    """The ASGI application of the API."""
    routes = _routes(services)
    return Api(routes=routes, middleware=_middleware(services, routes))


class Api(Starlette):
    """Starlette without its own error handling, which ``Problems`` does, and routing: ``Guard`` does."""

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = guard.dispatch
        for layer, args, kwargs in reversed(self.user_middleware):
            app = layer(app, *args, **kwargs)
        return app


def _middleware(services: Services, routes: list[Route]) -> Sequence[Middleware]:
    """Outermost first."""
    settings = services.settings
    return [
        Middleware(middleware.RequestIds),
        Middleware(middleware.Problems),
        Middleware(middleware.Versions),
        Middleware(guard.Guard, services=services, routes=routes, scopes=_scopes()),
        Middleware(
            middleware.BodyLimits,
            most=settings.body_bytes_max,
            larger={batch.PATH: settings.batch_bytes_max},
        ),
        Middleware(gate.Gate, services=services),
    ]


def _scopes() -> dict[tuple[str, str], OpScope]:
    """What each route needs; HEAD what GET does."""
    found = {(op.path, op.verb): op.scope for op in OPS}
    found |= {(path, "GET"): scope for path, scope, _ in PAGES}
    return {(path, "HEAD"): scope for (path, verb), scope in found.items() if verb == "GET"} | found


def _routes(services: Services) -> list[Route]:
    """One route a path, in the order of the table, so that fixed paths precede ``{id}``."""
    by_path: dict[str, dict[str, Op]] = {}
    for op in OPS:
        by_path.setdefault(op.path, {})[op.verb] = op
    handlers = {
        path: {verb: op.handler for verb, op in verbs.items()} for path, verbs in by_path.items()
    }
    handlers |= {path: {"GET": handler} for path, _, handler in PAGES}
    endpoints = {path: Endpoint(found, services) for path, found in handlers.items()}
    return [
        Route(path, endpoint, methods=endpoint.methods, name=path)
        for path, endpoint in endpoints.items()
    ]
