"""Services: what the routes need of the rest of the program, handed in by the composition root."""

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from tasksched.commands.access import Access
from tasksched.commands.admission import Admission
from tasksched.commands.audit import Audit
from tasksched.commands.bulk import Bulk
from tasksched.commands.callbacks import Callbacks
from tasksched.commands.endpoints import Endpoints
from tasksched.commands.live import Live
from tasksched.commands.queues import Queues
from tasksched.commands.recurring import Recurring
from tasksched.commands.system import System
from tasksched.commands.tasks import Tasks
from tasksched.commands.tenants import Tenants
from tasksched.http import exchange
from tasksched.http.refusals import Refusals
from tasksched.http.streams import Streams
from tasksched.settings import Settings

VERSION: Final = version("tasksched")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The commands and the settings of one API process."""

    tasks: Tasks
    recurring: Recurring
    endpoints: Endpoints
    system: System
    settings: Settings
    callbacks: Callbacks
    live: Live
    bulk: Bulk
    tenants: Tenants
    queues: Queues
    admission: Admission
    access: Access
    audit: Audit
    refusals: Refusals = field(default_factory=Refusals)
    streams: Streams = field(default_factory=Streams)


Call = exchange.Call[Services]
