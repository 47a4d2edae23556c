"""loading: the App that a command line names. For workers and for the processes they start."""

import importlib
import importlib.util
import sys
from pathlib import Path

from tasksched.client.app import App
from tasksched.errors import Invalid


def load_app(target: str) -> App:
    """The App that ``package.module:name`` or ``path/file.py:name`` names (name: ``app``)."""
    place, _, name = target.partition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, str(Path.cwd()))
            module = importlib.import_module(place)
    except (ImportError, FileNotFoundError) as error:
        raise Invalid(f"cannot load {target}: {error}", "/app") from error
    found = getattr(module, name or "app", None)
    if not isinstance(found, App):
        raise Invalid(f"{target} is no tasksched App", "/app")
    return found
