"""Egress: which addresses the HTTP targets of this worker may reach.

The rules are the model's; here they meet what the operator allows: networks (``127.0.0.0/8``) and
host names (``internal.example``, whatever it resolves to). Invariant: an address that is not allowed
itself and is denied, or leads to a denied IPv4 address, is refused; and of a name with several
addresses one bad one refuses all, since which of them is used is not for the name's owner to choose.
"""

import ipaddress
from collections.abc import Iterable

from tasksched.errors import Invalid
from tasksched.model.http_rules import Address, Network, embedded, is_denied, parse_address


class TargetNotAllowedError(Exception):
    """The target is, or resolves to, an address that must not be reached. Says no more."""


class Egress:
    """``allow``: networks and host names that may be reached although they are denied."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._networks: list[Network] = []
        self._names: set[str] = set()
        for item in allow:
            self._allow(item.strip())

    def refuses(self, address: str) -> bool:
        """Whether no connection may be made to this address. What is no address is refused."""
        found = parse_address(address)
        if found is None:
            return True
        return self._is_closed(found) or any(self._is_closed(inner) for inner in embedded(found))

    def check(self, host: str, addresses: Iterable[str]) -> None:
        """Raises TargetNotAllowedError unless every address of the host may be reached."""
        if host.lower().removesuffix(".") in self._names:
            return
        if any(self.refuses(address) for address in addresses):
            raise TargetNotAllowedError

    def _is_closed(self, address: Address) -> bool:
        if any(address in net for net in self._networks if net.version == address.version):
            return False
        return is_denied(address)

    def _allow(self, item: str) -> None:
        try:
            self._networks.append(ipaddress.ip_network(item))
        except ValueError:
            if "/" in item or not item or not item.isascii():
                raise Invalid(
                    f"{item!r} is neither a network nor a host name", "/http_allow"
                ) from None
            self._names.add(item.lower().removesuffix("."))
