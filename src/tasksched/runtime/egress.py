"""Egress: which addresses the HTTP targets of this worker may reach.

The rules are the model's; here they meet what the operator allows: networks (``127.0.0.0/8``) and
host names (``internal.example``, whatever it resolves to), and what they close in addition: networks
of their own, which nothing opens. Invariant: an address that is not allowed itself and is denied, or
leads to a denied IPv4 address, is refused; and of a name with several addresses one bad one refuses
all, since which of them is used is not for the name's owner to choose.
"""

import ipaddress
from collections.abc import Iterable

from tasksched.errors import Invalid
from tasksched.model.http_rules import Address, Network, embedded, is_denied, parse_address


class TargetNotAllowedError(Exception):
    """The target is, or resolves to, an address that must not be reached. Says no more."""


class Egress:
    """``allow``: networks and host names that may be reached although they are denied.
    ``deny``: networks that may not be, whatever is allowed.
    """

    def __init__(self, allow: Iterable[str] = (), deny: Iterable[str] = ()) -> None:
        self._closed = [_network(item.strip()) for item in deny]
        self._networks: list[Network] = []
        self._names: set[str] = set()
        for item in allow:
            self._allow(item.strip())

    def refuses(self, address: str) -> bool:
        """Whether no connection may be made to this address. What is no address is refused."""
        found = parse_address(address)
        if found is None:
            return True
        return any(self._is_closed(each) for each in (found, *embedded(found)))

    def check(self, host: str, addresses: Iterable[str]) -> None:
        """Raises TargetNotAllowedError unless every address of the host may be reached."""
        is_named = host.lower().removesuffix(".") in self._names
        refuses = self._refuses_always if is_named else self.refuses
        if any(refuses(address) for address in addresses):
            raise TargetNotAllowedError

    def _refuses_always(self, address: str) -> bool:
        found = parse_address(address)
        return found is None or any(
            _within(each, self._closed) for each in (found, *embedded(found))
        )

    def _is_closed(self, address: Address) -> bool:
        if _within(address, self._closed):
            return True
        return is_denied(address) and not _within(address, self._networks)

    def _allow(self, item: str) -> None:
        try:
            self._networks.append(ipaddress.ip_network(item))
        except ValueError:
            if "/" in item or not item or not item.isascii():
                raise Invalid(
                    f"{item!r} is neither a network nor a host name", "/http_allow"
                ) from None
            self._names.add(item.lower().removesuffix("."))


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in net for net in networks if net.version == address.version)


def _network(item: str) -> Network:
    try:
        return ipaddress.ip_network(item)
    except ValueError:
        raise Invalid(f"{item!r} is not a network", "/http_deny") from None
