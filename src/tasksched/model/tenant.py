"""What is set for one tenant: its signing secrets, and how long what is finished stays."""

import msgspec


class Secret(msgspec.Struct, frozen=True, omit_defaults=True):
    """A signing secret (``whsec_…``). ``until_ms``: a rotated one signs along until then."""

    value: str
    until_ms: int | None = None


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """None: as the installation's settings say. ``secrets``: the newest first."""

    secrets: tuple[Secret, ...] = ()
    retention_success_ms: int | None = None
    retention_failed_ms: int | None = None
    retention_count_max: int | None = None
    retention_bytes_max: int | None = None


def current(secrets: tuple[Secret, ...], now_ms: int) -> list[str]:
    """The secrets that sign now, the newest first."""
    return [each.value for each in secrets if each.until_ms is None or each.until_ms > now_ms]
