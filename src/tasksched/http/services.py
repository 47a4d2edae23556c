"""Services: what the routes need of the rest of the program, handed in by the composition root."""

from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from tasksched.commands.recurring import Recurring
from tasksched.commands.system import System
from tasksched.commands.tasks import Tasks
from tasksched.http import exchange
from tasksched.settings import Settings

VERSION: Final = version("tasksched")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The commands and the settings of one API process."""

    tasks: Tasks
    recurring: Recurring
    system: System
    settings: Settings


Call = exchange.Call[Services]
