"""Keys: API keys made, listed, rotated and revoked, at Redis itself: the first one must come from there.

A key is told once, in the answer that made it. A revoked one stays listed, so that it is known why it is
refused; only beyond KEYS_MAX do those leave that ended first. Invariant: whoever changes a key changes the
version it read, and a namespace that had a key always has one.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from tasksched.commands.audit import Audit, Entry
from tasksched.errors import Conflict, Invalid, NotFound
from tasksched.model.apikey import (
    KEYS_MAX,
    LIFE_MAX_MS,
    LIFE_MIN_MS,
    OVERLAP_MAX_MS,
    OVERLAP_MS,
    ApiKey,
    KeyInfo,
    Scope,
    check_label,
    check_scopes,
    check_tenant,
    new_id,
    new_text,
    read_key,
)
from tasksched.store.protocol import Store
from tasksched.store.reads import Reads
from tasksched.store.records import TRIES, Kept, Records
from tasksched.store.replies import pairs_of

Change = Callable[[ApiKey, int], ApiKey]

ACTOR: Final = "cli"
"""Who is named in the audit where a key was changed at Redis itself."""


class KeySpec(msgspec.Struct, frozen=True, kw_only=True):
    """A key to make. ``life_ms``: it expires after so long; None never."""

    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    life_ms: int | None = None


class Keys:
    """The requests about keys."""

    def __init__(self, store: Store, *, actor: str = ACTOR) -> None:
        self._store = store
        self._actor = actor
        self._records = Records(store, store.global_keys.api_keys, ApiKey)
        self._reads = Reads(store)
        self._audit = Audit(store)

    async def create(self, spec: KeySpec) -> KeyInfo:
        """A new key, told in ``text``. Raises Invalid, and Conflict for one too many."""
        scopes = check_scopes(spec.scopes)
        life_ms = spec.life_ms
        if life_ms is not None and not LIFE_MIN_MS <= life_ms <= LIFE_MAX_MS:
            raise Invalid("a key lives from a second to ten years, or for ever", "/expires")
        now_ms = await self._reads.now_ms()
        await self._make_room(now_ms)
        key_id = new_id()
        text = new_text(key_id)
        key = ApiKey(
            name=check_label(spec.name),
            tenant=check_tenant(spec.tenant, scopes),
            scopes=scopes,
            hash=read_key(text).hash,
            created_ms=now_ms,
            expires_ms=None if life_ms is None else now_ms + life_ms,
        )
        await self._records.put(key_id, key, expected=0)
        await self._note("keys create", key_id, key)
        return _info(key_id, key, now_ms, None, text)

    async def list(self) -> list[KeyInfo]:
        """All keys, the oldest first, without what would let anybody in."""
        found, now_ms = await self._records.all(), await self._reads.now_ms()
        used = await self._used()
        order = sorted(found, key=lambda name: (found[name].value.created_ms, name))
        return [_info(name, found[name].value, now_ms, used.get(name)) for name in order]

    async def revoke(self, key_id: str) -> KeyInfo:
        """Never valid again; of no effect on one that is revoked. Raises NotFound."""

        def change(key: ApiKey, now_ms: int) -> ApiKey:
            if key.revoked_ms is not None:
                return key
            return msgspec.structs.replace(key, revoked_ms=now_ms, old_hash="", old_until_ms=0)

        return await self._change("keys revoke", key_id, change)

    async def rotate(self, key_id: str, *, overlap_ms: int = OVERLAP_MS) -> KeyInfo:
        """A new key of the same id, told in ``text``; the one before is valid for ``overlap_ms`` yet.

        Raises NotFound, and Conflict for a key that is not valid any more.
        """
        if not 0 <= overlap_ms <= OVERLAP_MAX_MS:
            raise Invalid("an overlap is from 0 to 30 days", "/overlap")
        text = new_text(key_id)

        def change(key: ApiKey, now_ms: int) -> ApiKey:
            if (state := key.state_at(now_ms)) != "active":
                raise Conflict(f"key {key_id} is {state}: make a new one")
            return msgspec.structs.replace(
                key,
                hash=read_key(text).hash,
                old_hash=key.hash,
                old_until_ms=now_ms + overlap_ms,
                rotated_ms=now_ms,
            )

        found = await self._change("keys rotate", key_id, change)
        return msgspec.structs.replace(found, text=text)

    async def _change(self, verb: str, key_id: str, change: Change) -> KeyInfo:
        now_ms = await self._reads.now_ms()
        for _ in range(TRIES):
            kept = await self._kept(key_id)
            key = change(kept.value, now_ms)
            if key == kept.value:
                return _info(key_id, key, now_ms, (await self._used()).get(key_id))
            answer = await self._records.put(key_id, key, expected=kept.version)
            if answer.word == "kept":
                await self._note(verb, key_id, key)
                return _info(key_id, key, now_ms, (await self._used()).get(key_id))
        raise Conflict(f"key {key_id} changes faster than it can be changed")

    async def _kept(self, key_id: str) -> Kept[ApiKey]:
        kept = await self._records.get(key_id)
        if kept is None:
            raise NotFound(f"no key {key_id}")
        return kept

    async def _used(self) -> dict[str, int]:
        home = self._store.global_keys.api_keys_used
        raw = await self._store.gateway.command("HGETALL", home)
        return {name.decode(): int(value) for name, value in pairs_of(raw)}

    async def _make_room(self, now_ms: int) -> None:
        """Of as many keys as may be, that leaves which ended first. Raises Conflict."""
        home = self._store.global_keys.api_keys
        if await self._store.gateway.command("HLEN", home) < KEYS_MAX:
            return
        found = await self._records.all()
        ended = [
            (key.revoked_ms or key.expires_ms or 0, name)
            for name, (_, key) in found.items()
            if key.state_at(now_ms) != "active"
        ]
        if not ended:
            raise Conflict(f"a namespace has at most {KEYS_MAX} keys: revoke some")
        _, name = min(ended)
        await self._records.remove(name)
        await self._store.gateway.command("HDEL", self._store.global_keys.api_keys_used, name)

    async def _note(self, verb: str, key_id: str, key: ApiKey) -> None:
        entry = Entry(key=self._actor, tenant=key.tenant, route=verb, object=key_id, outcome="ok")
        await self._audit.write(entry)


def _info(
    key_id: str, key: ApiKey, now_ms: int, used_ms: int | None, text: str | None = None
) -> KeyInfo:
    return KeyInfo(
        id=key_id,
        name=key.name,
        tenant=key.tenant,
        scopes=key.scopes,
        state=key.state_at(now_ms),
        created_ms=key.created_ms,
        expires_ms=key.expires_ms,
        revoked_ms=key.revoked_ms,
        rotated_ms=key.rotated_ms,
        last_used_ms=used_ms,
        text=text,
    )
