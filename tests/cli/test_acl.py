"""tasksched acl: users without passwords are off, and no password comes out."""

import hashlib

import pytest
from tests.cli.test_cli import Shell

HASH = hashlib.sha256(b"s3cret").hexdigest()


@pytest.fixture
def shell() -> Shell:
    return Shell(TASKSCHED_URL="redis://u:s3cret@127.0.0.1:1/0", TASKSCHED_NAMESPACE="mine")


def test_users_are_off_until_they_have_a_password(shell: Shell):
    lines = shell.ok("acl").splitlines()
    assert [line.split(" ")[:3] for line in lines] == [
        ["user", f"tasksched-{role}", "off"]
        for role in ("api", "scheduler", "worker", "producer", "reader", "admin")
    ]
    assert all(" ~{mine:* ~mine:* resetchannels &{mine:* -@all +" in each for each in lines[:4])
    assert " %R~{mine:* %R~mine:* resetchannels &{mine:* -@all +" in lines[4]
    assert not any("nopass" in line or "+@" in line for line in lines)


@pytest.mark.parametrize("said", ["s3cret\n", f"{HASH}\n", f"#{HASH}"])
def test_a_password_comes_out_as_its_hash(shell: Shell, said: str):
    done = shell.run("acl", "--role", "worker+producer", "--password-stdin", stdin=said)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(f"user tasksched-worker-producer on #{HASH} resetkeys ")
    assert "s3cret" not in done.output


def test_passwords_are_one_for_each_user(shell: Shell):
    done = shell.run("acl", "--password-stdin", stdin="one\ntwo\n")
    assert done.exit_code == 2
    assert "6 passwords are wanted on stdin, one a line; got 2" in done.stderr


def test_an_unknown_role_is_wrong_usage(shell: Shell):
    assert shell.run("acl", "--role", "root").exit_code == 2


def test_redis_7_0_is_not_told_of_what_it_does_not_know(shell: Shell):
    assert "+waitaof" in shell.ok("acl", "--role", "api")
    assert "waitaof" not in shell.ok("acl", "--role", "api", "--redis-7.0")


def test_the_settings_are_shown_without_the_password(shell: Shell):
    assert "s3cret" not in shell.ok("config", "show")
