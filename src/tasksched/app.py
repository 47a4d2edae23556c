"""The composition root: settings in, running roles out. The one module that knows everybody.

Each ``run_*`` blocks until SIGTERM or SIGINT and returns an exit code. A role that cannot reach
Redis at its start keeps trying: no process needs a restart after Redis comes back.
"""

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
import uvloop

from tasksched import embedded, log
from tasksched.client.app import App
from tasksched.commands.session import Session, open_session
from tasksched.commands.system import System
from tasksched.errors import Invalid, Unavailable
from tasksched.http.api import Services, make_api
from tasksched.runtime.janitor import Retention
from tasksched.runtime.registry import Registry
from tasksched.runtime.scheduler import Scheduler
from tasksched.runtime.worker import Worker
from tasksched.settings import Settings
from tasksched.store.beats import SyncBeats
from tasksched.store.checks import require_safe

RETRY_S = 1.0
SSE_GRACE_S = 2

_log = log.get("app")
