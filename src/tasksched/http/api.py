"""The API: the route table, the middleware, and the application made of them.

The table is the one place where a path meets its handler, its shapes and its parameters; routing and
``/openapi.json`` are both made from it. The application has no exception handling of its own: errors
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
    batch,
    callbacks,
    dead_letters,
    docs,
    gate,
    live,
    middleware,
    operations,
    problem_pages,
    recurring,
    system,
    tasks,
    tenants,
    webhooks,
)
from tasksched.http.exchange import JSON, Endpoint, Reply
from tasksched.http.openapi import Op, describe
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
    QueuePage,
    StatsView,
    StatusView,
    TaskBody,
    TaskPage,
    TaskView,
    WorkerPage,
)
from tasksched.http.schema_bulk import (
    DeadBulkBody,
    DeletedView,
    GroupPage,
    OperationPage,
    OperationView,
    RedriveChangesBody,
    TaskBulkBody,
    TaskEditBody,
    TenantBody,
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
_CREATES = (*_WRITES, "Idempotency-Key")
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
    Op("POST", "/tasks", tasks.create, {201: CreatedView, 200: TaskView}, _TASK, (*_CREATES, "Prefer", "?wait"), _BAD),
    Op("GET", "/tasks", tasks.list_, {200: TaskPage}, {}, _PAGE, (400, 422)),
    Op("POST", "/tasks/batch", batch.create_many, {200: BatchView}, _BATCH, _CREATES, _BAD),
    Op("GET", "/tasks/count", tasks.count, {200: CountView}, {}, _TENANT),
    Op("POST", "/tasks/cancel", operations.cancel_many, _OPERATION, {"application/json": TaskBulkBody}, _TENANT, (429, *_BAD)),
    Op("POST", "/tasks/edit", operations.edit_many, _OPERATION, {"application/json": TaskEditBody}, _TENANT, (429, *_BAD)),
    Op("POST", "/tasks/delete", operations.delete_many, _OPERATION, {"application/json": TaskBulkBody}, _TENANT, (429, *_BAD)),
    Op("GET", "/tasks/{id}", tasks.get, {200: TaskView, 304: None}, {}, (*_TENANT, "If-None-Match", "Prefer", "?wait"), (404,)),
    Op("PATCH", "/tasks/{id}", tasks.edit, {200: TaskView}, _EDIT, _CHANGES, (404, 409, 412, *_BAD)),
    Op("DELETE", "/tasks/{id}", tasks.delete, {200: DeletedView}, _NO_OPTIONS, (*_TENANT, "If-Match"), (404, 409, 412)),
    Op("POST", "/tasks/{id}/cancel", tasks.cancel, {200: ChangedView, 202: ChangedView}, _NO_OPTIONS, _CHANGES, (404, 409, 412)),
    Op("POST", "/tasks/{id}/run-now", tasks.run_now, {200: ChangedView}, _NO_OPTIONS, _CHANGES, (404, 409, 412)),
    Op("POST", "/tasks/{id}/retry", tasks.retry, {200: ChangedView}, {"application/json": RedriveChangesBody}, _CHANGES, (404, 409, 412, *_BAD)),
    Op("GET", "/tasks/{id}/attempts", tasks.attempts, {200: AttemptPage}, {}, _TENANT, (404,)),
    Op("GET", "/tasks/{id}/log", live.log, {200: LinePage}, {}, (*_TENANT, "?after", "?line_limit", "Last-Event-ID"), (400, 404, 422, 429)),
    Op("POST", "/tasks/{id}/heartbeat", callbacks.heartbeat, {200: HeardView}, {"application/json": HeartbeatBody}, _CALLBACK, (404, 409, *_BAD)),
    Op("POST", "/tasks/{id}/complete", callbacks.complete, {200: ReportedView}, {"application/json": CompleteBody}, (*_CALLBACK, "Durability"), (404, 409, *_BAD)),
    Op("POST", "/tasks/{id}/fail", callbacks.fail, {200: ReportedView}, {"application/json": FailBody}, (*_CALLBACK, "Durability"), (404, 409, *_BAD)),
    Op("GET", "/events", live.events, {200: "text/event-stream"}, {}, (*_TENANT, "?task_id", "?queue", "?status", "Last-Event-ID"), (400, 422, 429)),
    Op("POST", "/recurring-tasks", recurring.create, {201: RecurringView, 200: RecurringView}, _RECURRING, _CREATES, (409, *_BAD)),
    Op("GET", "/recurring-tasks", recurring.list_, {200: RecurringPage}, {}, (*_TENANT, "?recurring_status", "?limit", "?cursor"), (400, 422)),
    Op("GET", "/recurring-tasks/{id}", recurring.get, {200: RecurringView}, {}, _TENANT, (404,)),
    Op("PUT", "/recurring-tasks/{id}", recurring.put, {201: RecurringView, 200: RecurringView}, _RECURRING, (*_CHANGES, "If-None-Match *"), (412, 428, *_BAD)),
    Op("PATCH", "/recurring-tasks/{id}", recurring.edit, {200: RecurringView}, _RECURRING_EDIT, _CHANGES, (404, 412, 428, *_BAD)),
    Op("DELETE", "/recurring-tasks/{id}", recurring.remove, {200: RemovedView}, _NO_OPTIONS, _CHANGES, (404, 412, 428)),
    Op("POST", "/recurring-tasks/{id}/pause", recurring.pause, {200: RecurringView}, _NO_OPTIONS, _CHANGES, (404, 409, 412)),
    Op("POST", "/recurring-tasks/{id}/resume", recurring.resume, {200: RecurringView}, _NO_OPTIONS, _CHANGES, (404, 409, 412)),
    Op("POST", "/recurring-tasks/{id}/trigger", recurring.trigger, {201: TriggeredView}, _NO_OPTIONS, _WRITES, (404,)),
    Op("POST", "/recurring-tasks/{id}/backfill", recurring.backfill, {200: BackfillView}, _BACKFILL, _WRITES, (404, *_BAD)),
    Op("GET", "/recurring-tasks/{id}/next", recurring.next_fires, {200: NextView}, {}, (*_TENANT, "?n"), (404, 422)),
    Op("GET", "/recurring-tasks/{id}/runs", recurring.runs, {200: LedgerPage}, {}, _TENANT, (404,)),
    Op("POST", "/webhooks", webhooks.create, {201: WebhookView}, _WEBHOOK, _TENANT, (409, *_BAD)),
    Op("GET", "/webhooks", webhooks.list_, {200: WebhookPage}, {}, _TENANT),
    Op("POST", "/webhooks/rotate-tenant-secret", webhooks.rotate_tenant_secret, {200: TenantSecretView}, _ROTATE, _TENANT, _BAD),
    Op("GET", "/webhooks/{id}", webhooks.get, {200: WebhookView}, {}, _TENANT, (404,)),
    Op("PATCH", "/webhooks/{id}", webhooks.edit, {200: WebhookView}, _WEBHOOK_EDIT, _MATCHES, (404, 412, 428, *_BAD)),
    Op("DELETE", "/webhooks/{id}", webhooks.remove, {200: RemovedWebhookView}, _NO_OPTIONS, _MATCHES, (404, 412, 428)),
    Op("POST", "/webhooks/{id}/enable", webhooks.enable, {200: WebhookView}, _NO_OPTIONS, _MATCHES, (404, 412)),
    Op("POST", "/webhooks/{id}/disable", webhooks.disable, {200: WebhookView}, _NO_OPTIONS, _MATCHES, (404, 412)),
    Op("POST", "/webhooks/{id}/rotate-secret", webhooks.rotate_secret, {200: WebhookView}, _ROTATE, _MATCHES, (404, 412, *_BAD)),
    Op("POST", "/webhooks/{id}/test", webhooks.test, {202: DeliveryView}, _NO_OPTIONS, _TENANT, (404, 409)),
    Op("GET", "/webhooks/{id}/deliveries", webhooks.deliveries, {200: DeliveryPage}, {}, (*_TENANT, "?status", "?limit", "?cursor"), (400, 404, 422)),
    Op("POST", "/webhooks/{id}/deliveries/{delivery}/replay", webhooks.replay, {202: DeliveryView}, _NO_OPTIONS, _TENANT, (404, 409)),
    Op("POST", "/preview", recurring.preview, {200: PreviewView}, _PREVIEW, (), _BAD),
    Op("GET", "/dead-letters", dead_letters.dead_list, {200: TaskPage}, {}, (*_DEAD, "?limit", "?cursor"), (400, 422)),
    Op("GET", "/dead-letters/groups", dead_letters.dead_groups, {200: GroupPage}, {}, (*_GROUPS, "?group_limit", "?cursor"), (400, 422)),
    Op("POST", "/dead-letters/redrive", dead_letters.dead_redrive, _OPERATION, {"application/json": DeadBulkBody}, _TENANT, (429, *_BAD)),
    Op("POST", "/dead-letters/purge", dead_letters.dead_purge, _OPERATION, {"application/json": DeadBulkBody}, _TENANT, (429, *_BAD)),
    Op("GET", "/operations", operations.operations_list, {200: OperationPage}, {}, (*_TENANT, "?limit", "?cursor"), (400, 422)),
    Op("GET", "/operations/{id}", operations.operation_get, {200: OperationView}, {}, _TENANT, (404,)),
    Op("POST", "/operations/{id}/stop", operations.operation_stop, {200: OperationView}, _NO_OPTIONS, _TENANT, (404, 409)),
    Op("GET", "/tenants/{tenant}", tenants.tenant_get, {200: TenantView}, {}, _TENANT, (404,)),
    Op("PUT", "/tenants/{tenant}", tenants.tenant_put, {200: TenantView}, {"application/json": TenantBody}, (*_TENANT, "If-Match"), (404, 409, 412, *_BAD)),
    Op("GET", "/queues", system.queues, {200: QueuePage}, {}, _TENANT),
    Op("GET", "/workers", system.workers, {200: WorkerPage}),
    Op("GET", "/stats", system.stats, {200: StatsView}),
    Op("GET", "/health", system.health, {200: HealthView, 503: HealthView}),
    Op("GET", "/livez", system.livez, {200: StatusView}),
    Op("GET", "/readyz", system.readyz, {200: StatusView}, refuses=(503,)),
    Op("GET", "/healthz", system.healthz, {200: StatusView}, refuses=(503,)),
    Op("GET", "/metrics", system.metrics, {200: "text/plain"}),
    Op("GET", "/problems/{code}", problem_pages.problem, {200: ProblemKindView}, refuses=(404,)),
    Op("GET", "/openapi.json", openapi, {200: {"type": "object"}}),
)
# fmt: on

DOCUMENT: Final = describe(OPS)

PAGES: Final = (
    ("/docs", docs.page),
    ("/docs/docs.js", docs.script),
    ("/docs/docs.css", docs.style),
)


def make_api(services: Services) -> Starlette:
    """The ASGI application of the API."""
    return Api(routes=_routes(services), middleware=_middleware(services))


class Api(Starlette):
    """Starlette without its own layers of error handling: ``Problems`` answers every error."""

    def build_middleware_stack(self) -> ASGIApp:
        self.router.redirect_slashes = False
        app: ASGIApp = self.router
        for layer, args, kwargs in reversed(self.user_middleware):
            app = layer(app, *args, **kwargs)
        return app


def _middleware(services: Services) -> Sequence[Middleware]:
    """Outermost first."""
    settings = services.settings
    return [
        Middleware(middleware.RequestIds),
        Middleware(middleware.Problems),
        Middleware(middleware.LoopbackOnly),
        Middleware(middleware.Versions),
        Middleware(
            middleware.BodyLimits,
            most=settings.body_bytes_max,
            larger={batch.PATH: settings.batch_bytes_max},
        ),
        Middleware(gate.Gate, services=services),
    ]


def _routes(services: Services) -> list[Route]:
    """One route a path, in the order of the table, so that fixed paths precede ``{id}``."""
    by_path: dict[str, dict[str, Op]] = {}
    for op in OPS:
        by_path.setdefault(op.path, {})[op.verb] = op
    handlers = {
        path: {verb: op.handler for verb, op in verbs.items()} for path, verbs in by_path.items()
    }
    handlers |= {path: {"GET": handler} for path, handler in PAGES}
    endpoints = {path: Endpoint(found, services) for path, found in handlers.items()}
    return [
        Route(path, endpoint, methods=endpoint.methods, name=path)
        for path, endpoint in endpoints.items()
    ]
