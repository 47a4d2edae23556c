"""Messages: what is sent to a receiver, and the task that carries it."""

from typing import Any, Final

from tasksched.model import codec
from tasksched.model.instants import format_instant
from tasksched.model.notify import Delivery
from tasksched.model.retry import Retry
from tasksched.model.seal import Bodies, task_place
from tasksched.model.task import HttpTarget, Options, encode_options

PREFIX: Final = "msg_"  # with it begins the id of every message
BYTES_MAX: Final = 512 * 1024
# Ten attempts, the waits from 5 s on four times as long: the last one ten to twenty hours later.
RETRY: Final = Retry(10, initial="5s", factor=4, max="6h", jitter="equal")


def message_body(event: str, at_ms: int, data: dict[str, Any]) -> bytes:
    """The payload of a delivery: ``{"type", "timestamp", "data"}`` of Standard Webhooks."""
    body = {"type": event, "timestamp": format_instant(at_ms), "data": data}
    return codec.encode(body, most=BYTES_MAX)


def delivery_options(url: str, delivery: Delivery) -> str:
    """The options of a delivery's record. Its endpoint is its tag, by which it is listed."""
    return encode_options(
        Options(
            http=HttpTarget(url),
            retry=RETRY,
            tags=() if delivery.endpoint is None else (delivery.endpoint,),
            delivery=delivery,
        )
    )


def delivery_row(
    bodies: Bodies, tenant: str, task_id: str, body: bytes, options: str
) -> tuple[str, str, bytes]:
    """What ``Store.deliver`` takes for one delivery."""
    return task_id, options, bodies.seal(body, task_place(tenant, task_id, "payload"))
