pytestmark = __import__("pytest").mark.anyio
import pytest
from tests.protocol.kit import *
from tasksched.model.states import STATES

@pytest.mark.parametrize("state", STATES)
async def test_task_in(kit, state):
    await kit.task_in(state)
    await kit.task_in(state)
