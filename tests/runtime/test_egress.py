"""What an operator allows, and what stays refused all the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasksched.errors import Invalid
from tasksched.runtime.egress import Egress, TargetNotAllowedError


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "::ffff:10.0.0.1", "fe80::1%eth0", "localhost", "", "1"]
)
def test_without_an_allow_list_nothing_internal_is_reached(address):
    assert Egress().refuses(address)


def test_public_addresses_are_reached():
    assert not Egress().refuses("93.184.216.34")
    assert not Egress().refuses("2606:4700:4700::1111")


def test_an_allowed_network_is_reached_and_its_neighbours_are_not():
    egress = Egress(["127.0.0.0/8", "::1/128", "10.1.2.3"])

    assert not egress.refuses("127.8.8.8")
    assert not egress.refuses("::1")
    assert not egress.refuses("10.1.2.3")
    assert egress.refuses("10.1.2.4")
    assert egress.refuses("::2")
    assert egress.refuses("::ffff:127.0.0.1")


@given(st.integers(0, 0xFFFF))
def test_allowing_a_wrapper_does_not_allow_what_it_leads_to(low):
    egress = Egress(["64:ff9b::/96"])

    assert egress.refuses(f"64:ff9b::a9fe:{low:x}")
    assert egress.refuses(f"64:ff9b::7f00:{low:x}")
    assert not egress.refuses(f"64:ff9b::808:{low:x}")


def test_one_bad_address_refuses_the_name():
    with pytest.raises(TargetNotAllowedError):
        Egress().check("example.com", ["93.184.216.34", "127.0.0.1"])
    Egress().check("example.com", ["93.184.216.34", "1.1.1.1"])


def test_an_allowed_name_may_resolve_to_anything():
    egress = Egress(["localhost", "Internal.Example."])

    egress.check("LOCALHOST", ["127.0.0.1", "::1"])
    egress.check("internal.example", ["10.0.0.1"])
    with pytest.raises(TargetNotAllowedError):
        egress.check("other.example", ["10.0.0.1"])


@pytest.mark.parametrize("item", ["10.0.0.1/8", "", "300.0.0.0/8", "münchen.de", "a/b"])
def test_an_allow_list_with_nonsense_is_refused(item):
    with pytest.raises(Invalid):
        Egress([item])
