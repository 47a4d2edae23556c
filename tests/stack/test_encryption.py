"""Real processes: an app that encrypts with a codec of its own, and an API that has no key."""

from pathlib import Path

import pytest
import redis
from tests.protocol.audit import read_dump
from tests.stack.kit import Stack, handler

from tasksched import App
from tasksched.model.seal import AesGcmCodec

pytestmark = pytest.mark.stack

CANARY = "canary-7f3a"
APP = f"""
from tasksched import App
from tasksched.model.seal import AesGcmCodec

app = App(codec=AesGcmCodec({{"own": b"k" * 32}}, "own"))

@app.task(every="1h")
def hourly(): ...

@app.task
async def echo(word):
    assert word == "{CANARY}"
    return [word]
"""


def test_a_codec_of_the_app_serves_its_workers_and_hides_from_the_api(stack: Stack, tmp_path: Path):
    place = tmp_path / "app"
    place.mkdir()
    (place / "secretive.py").write_text(APP)
    api, _ = stack.api("--scheduler")
    stack.start("worker", f"{place / 'secretive.py'}:app")
    app = App(stack.url, codec=AesGcmCodec({"own": b"k" * 32}, "own"))
    task = app.submit_sync("echo", CANARY)
    assert task.result_sync("20s") == [CANARY]
    app.close_sync()

    shown = api.task(task.id)
    assert (shown["status"], shown["payload"], shown["result"]) == ("SUCCESS", None, None)
    assert shown["encrypted"] is True
    with redis.Redis.from_url(stack.url) as plain:
        assert CANARY not in repr(read_dump(plain))

    # What the API stores without a key is plain, and the worker reads that too.
    made = stack.submit(api, handler("echo", [CANARY]))
    assert api.task(made, wait_s=15)["status"] == "SUCCESS"


def test_a_role_does_not_start_with_keys_it_cannot_read(stack: Stack):
    process = stack.start("scheduler", TASKSCHED_ENCRYPTION_KEYS="k:c2VjcmV0")
    assert process.wait() == 2
    assert "6 bytes" in process.said()
    assert "c2VjcmV0" not in process.said()
