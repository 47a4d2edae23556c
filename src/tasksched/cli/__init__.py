"""cli: the command line. ``main`` is what ``tasksched`` and ``python -m tasksched`` run.

Data goes to stdout, chatter to stderr; errors are one line and an exit code (``tasksched.errors``).
This package alone imports inside functions: ``tasksched --help`` must not wait for a Redis client,
an HTTP client and a web server that it does not need.
"""

from tasksched.cli.acl import acl
from tasksched.cli.bulk import dead, operations
from tasksched.cli.group import main
from tasksched.cli.keys import audit, keys
from tasksched.cli.limits import pause, queues, resume, tenants
from tasksched.cli.recurring import recurring
from tasksched.cli.reencrypt import reencrypt
from tasksched.cli.roles import api, dev, scheduler, worker
from tasksched.cli.submit import submit
from tasksched.cli.system import config, doctor, stats, version, workers
from tasksched.cli.tail import tail
from tasksched.cli.tasks import cancel, delete, edit, explain, get, list_, retry, wait
from tasksched.cli.tenant_export import export_tenant
from tasksched.cli.webhooks import webhooks

for _command in (
    dev, api, scheduler, worker,
    submit, get, list_, edit, cancel, retry, delete, wait, explain, tail,
    dead, operations, recurring, webhooks,
    stats, queues, tenants, pause, resume, workers, doctor, keys, audit, acl, reencrypt, config, version,
):  # fmt: skip
    main.add_command(_command)
tenants.add_command(export_tenant)

__all__ = ["main"]
