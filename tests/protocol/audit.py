"""The audit: every invariant of one shard, recomputed from a full dump of its keys.

Written from the contract and ``store/keys.py``, not from the scripts: it shares no code with them.
Each finding is a sentence that names the task or key.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import redis

from tasksched.model.states import EDGES, FINAL, STATES, WAITING
from tasksched.store.keys import NamespaceKeys, ShardKeys

RECORD_BYTES = 400  # of a finished record beside its payload, result and error
HELD = {"QUEUED", "RUNNING"}
FLEETING = (":stub:", ":worker:", ":purged:")  # these keys go by themselves


class Stream(dict[str, str]):
    """Entry id → task id, and ``pending``: entry id → consumer; ``has_group``."""

    def __init__(self, entries: dict[str, str]) -> None:
        super().__init__(entries)
        self.pending: dict[str, str] = {}
        self.has_group = False


def read_dump(plain: redis.Redis) -> dict[str, Any]:
    """Every key of the database as a value that can be compared, stamps and ids as text."""
    keys = sorted(plain.scan_iter(count=1000))
    pipe = plain.pipeline(transaction=False)
    for key in keys:
        pipe.type(key)
    kinds = [kind.decode() for kind in pipe.execute()]
    # A key that lives for a millisecond may be gone by now: between two reads it goes by itself.
    there = [(key, kind) for key, kind in zip(keys, kinds, strict=True) if kind != "none"]
    for key, kind in there:
        _read(pipe, key, kind)
    values = pipe.execute()
    found = {}
    for (key, kind), value in zip(there, values, strict=True):
        name = key.decode()
        if value is not None:
            found[name] = _value(plain, name, kind, value)
    return found


def _read(pipe: Any, key: bytes, kind: str) -> None:
    match kind:
        case "hash":
            pipe.hgetall(key)
        case "zset":
            pipe.zrange(key, 0, -1, withscores=True)
        case "set":
            pipe.smembers(key)
        case "string":
            pipe.get(key)
        case "list":
            pipe.lrange(key, 0, -1)
        case "stream":
            pipe.xrange(key)


def _value(plain: redis.Redis, name: str, kind: str, value: Any) -> Any:
    match kind:
        case "hash":
            return {k.decode(): v for k, v in value.items()}
        case "zset":
            return {member.decode(): score for member, score in value}
        case "set":
            return {member.decode() for member in value}
        case "stream" if ":ready:" in name:
            return _stream(plain, name, value)
        case "stream":
            return [(entry, {k.decode(): v.decode() for k, v in f.items()}) for entry, f in value]
    return value


def _stream(plain: redis.Redis, name: str, value: Any) -> Stream:
    found = Stream({entry.decode(): fields[b"id"].decode() for entry, fields in value})
    found.has_group = any(g["name"] == b"workers" for g in plain.xinfo_groups(name))
    if found.has_group:
        for row in plain.xpending_range(name, "workers", "-", "+", 100_000):
            found.pending[row["message_id"].decode()] = row["consumer"].decode()
    return found


def audit(plain: redis.Redis, keys: ShardKeys, now_ms: int) -> list[str]:
    """Everything that is wrong in this shard."""
    return list(Audit(plain, keys, now_ms).findings())


class Audit:
    """One dump, taken apart."""

    def __init__(self, plain: redis.Redis, keys: ShardKeys, now_ms: int) -> None:
        dump = read_dump(plain)
        self.ttl = {key: plain.pttl(key) for key in dump if any(kind in key for kind in FLEETING)}
        self.keys, self.now_ms = keys, now_ms
        self.all = dump
        self.dump = {k: v for k, v in dump.items() if k.startswith(keys.shard + ":")}
        self._groups = self._grouped()
        self.records = {
            task_id: {name: value.decode("latin1") for name, value in raw.items()}
            for task_id, raw in self.group("task").items()
        }
        self.lanes: dict[str, dict[str, float]] = self.group("due")
        self.streams: dict[str, Stream] = self.group("ready")
        self.watch = self.one("watch")

    def group(self, kind: str) -> dict[str, Any]:
        """The keys ``{shard}:kind:name``, by name."""
        return self._groups.get(kind, {})

    def _grouped(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        for key, value in self.dump.items():
            kind, _, name = key.removeprefix(self.keys.shard + ":").partition(":")
            found[kind][name] = value
        return found

    def one(self, name: str) -> Any:
        return self.dump.get(f"{self.keys.shard}:{name}", {})

    def findings(self) -> Iterator[str]:
        yield from self.one_place()
        yield from self.members_have_records()
        yield from self.lanes_are_reachable()
        yield from self.streams_stand_in_one_place()
        yield from self.indexes_agree()
        yield from self.counters_are_recounts()
        yield from self.limits_hold()
        yield from self.groups_are_recounts()
        yield from self.history_is_legal()
        yield from self.keys_are_known()

    # -- S1 ----------------------------------------------------------------------------------------

    def one_place(self) -> Iterator[str]:
        """Each record is where its state says, and nowhere else."""
        places = self._places()
        for task_id, record in self.records.items():
            expected = self._expected_places(task_id, record)
            found = places[task_id]
            if set(found) != expected or len(found) != len(expected):
                yield f"S1 {task_id} {record['state']} is in {sorted(found)}, not {sorted(expected)}"

    def _places(self) -> dict[str, list[tuple[Any, ...]]]:
        found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for lane, members in self.lanes.items():
            for task_id, due_ms in members.items():
                found[task_id].append(("due", lane, int(due_ms)))
        for stream, entries in self.streams.items():
            for entry, task_id in entries.items():
                found[task_id].append(("entry", stream, entry, entries.pending.get(entry, "")))
        for task_id in self.watch:
            found[task_id].append(("watch",))
        for index in ("done", "dead", "held", "withheld"):
            for name, members in self.group(index).items():
                for task_id, score in members.items():
                    found[task_id].append((index, name, int(score)))
        return found

    @staticmethod
    def _expected_places(task_id: str, record: dict[str, str]) -> set[tuple[Any, ...]]:
        lane, state = record["lane"], record["state"]
        queue, priority, tenant, route = lane.split(":")
        if state == "PENDING" and "held" in record:
            due_ms, key = int(record["due_ms"]), record["concurrency"].split(":")[0]
            return {("held", key, due_ms), ("withheld", tenant, due_ms)}
        if state == "PENDING":
            return {("due", lane, int(record["due_ms"]))}
        if state in HELD:
            who = record["worker"] if state == "RUNNING" else ""
            return {("watch",), ("entry", f"{queue}:{priority}:{route}", record["entry"], who)}
        index = "dead" if state == "FAILED" else "done"
        return {(index, tenant, int(record["finished_ms"]))}

    def members_have_records(self) -> Iterator[str]:
        """The way back: nothing stands anywhere without its record (S22, S23)."""
        for task_id, found in self._places().items():
            if task_id not in self.records:
                yield f"S22 {task_id} has no record but is in {found}"
        for stream, entries in self.streams.items():
            for entry in set(entries.pending) - set(entries):
                yield f"S22 {stream}: {entry} is pending but not in the stream"
            if entries and not entries.has_group:
                yield f"S22 {stream} has entries but no group"

    # -- reachable ---------------------------------------------------------------------------------

    def lanes_are_reachable(self) -> Iterator[str]:
        """What waits in a lane is found when its time comes."""
        lanes = self.one("lanes")
        for lane, members in self.lanes.items():
            queue, priority, tenant, route = lane.split(":")
            stream = f"{queue}:{priority}:{route}"
            head_ms = min(members.values())
            by_time = lane in lanes and lanes[lane] <= head_ms
            by_turn = tenant in self.group("turns").get(stream, {})
            if not by_time and not by_turn and lane not in self.one("parked"):
                yield f"S1 lane {lane} (head {head_ms:.0f}) is not reachable: lanes {lanes.get(lane)}"
            if lane not in self.group("index").get(tenant, set()):
                yield f"S22 lane {lane} is not in the index of its tenant"
        for stream, entries in self.streams.items():
            if set(entries) - set(entries.pending) and stream not in self.one("unread"):
                yield f"S22 {stream} holds entries nobody read, but is not in unread"
            if entries and stream not in self.one("opened"):
                yield f"S22 {stream} exists but is not in opened"

    def streams_stand_in_one_place(self) -> Iterator[str]:
        """A stream with turns is served, full or parked: exactly one of them."""
        backlog, full, parked = (set(self.one(name)) for name in ("backlog", "full", "parked"))
        parked = {name for name in parked if name.count(":") == 2}
        for stream in self.group("turns"):
            if (places := [stream in p for p in (backlog, full, parked)].count(True)) != 1:
                yield f"S1 {stream} has turns and is in {places} of backlog, full and parked"
        for stream in (backlog & full) | (backlog & parked) | (full & parked):
            yield f"S1 {stream} is in more than one of backlog, full and parked"
        parked = {
            name for name in self.one("parked") if name[0] != "!" and not name.startswith("k/")
        }
        if parked != (whys := set(self.one("parked:why"))):
            yield f"S22 parked {parked} but reasons for {whys}"

    # -- S22 ---------------------------------------------------------------------------------------

    def indexes_agree(self) -> Iterator[str]:
        expiring = {
            task_id: int(record["expires_ms"])
            for task_id, record in self.records.items()
            if record["state"] in WAITING and "expires_ms" in record and "attempt" not in record
        }
        if expiring != (stored := {k: int(v) for k, v in self.one("expiry").items()}):
            yield f"S22 expiry is {stored}, not {expiring}"
        owners = {*self.group("done"), *self.group("dead")}
        if missing := owners - set(self.one("tenants")):
            yield f"S22 tenants lack {missing}"
        for kind, field in (
            ("body", "body"),
            ("attempts", None),
            ("lines", None),
            ("checkpoint", None),
        ):
            for task_id, value in self.group(kind).items():
                record = self.records.get(task_id)
                if record is None:
                    yield f"S23 {kind} of {task_id} without a record"
                elif field and record.get(field) != str(len(value)):
                    yield f"S25 {kind} of {task_id} has {len(value)} bytes, not {record.get(field)}"
        for task_id, record in self.records.items():
            if "body" in record and task_id not in self.group("body"):
                yield f"S25 the payload of {task_id} is gone"
            if "body" in record and "payload" in record:
                yield f"S25 {task_id} has two payloads"
            if record["state"] == "RUNNING" and "ended_ms" in record:
                yield f"S1 {task_id} runs but its attempt has ended"

        for ref, members in self.group("open").items():
            for task_id in members:
                record = self.records.get(task_id, {})
                if record.get("schedule") != ref or record["state"] in FINAL:
                    yield f"S22 {task_id} stands as open in {ref}: {record}"

    # -- S19 ---------------------------------------------------------------------------------------

    def counters_are_recounts(self) -> Iterator[str]:
        counted: Counter[str] = Counter()
        for task_id, record in self.records.items():
            queue, _, tenant, _ = record["lane"].split(":")
            counted[f"{tenant}:{queue}:{record['state']}"] += 1
            if record["state"] not in FINAL and queue != "notifications":
                counted[f"p/{tenant}"] += 1
            if record["state"] in HELD:
                counted[f"t/{tenant}"] += 1
                counted[f"q/{queue}"] += 1
                if "concurrency" in record:
                    counted[f"k/{record['concurrency'].split(':')[0]}"] += 1
            if record["state"] in FINAL:
                counted[f"bytes:{tenant}"] += self._bytes(task_id, record)
        stored = {name: int(value) for name, value in self.one("counts").items()}
        for name in sorted({*counted, *stored}):
            if counted[name] != stored.get(name, 0):
                yield f"S19 {name} counts {stored.get(name, 0)}, recounted {counted[name]}"
        for name, value in self.one("stats").items():
            if name.startswith("illegal:"):
                yield f"S17 {name} was tried {value.decode()} times"

    def limits_hold(self) -> Iterator[str]:
        """No more tasks hold a permit than this shard was allotted."""
        counts = {name: int(value) for name, value in self.one("counts").items()}
        for limit, text in self.one("allot").items():
            permits = int(text.split()[0])
            if limit[0] != "p" and counts.get(limit, 0) > permits:
                yield f"S20 {limit}: {counts[limit]} hold permits, {permits} are allotted"

    def groups_are_recounts(self) -> Iterator[str]:
        """Each dead letter counts in its cell, and stands in the index of its fingerprint."""
        cells: dict[str, Counter[str]] = defaultdict(Counter)
        members: dict[str, dict[str, int]] = defaultdict(dict)
        for task_id, record in self.records.items():
            if record["state"] == "FAILED" and "failure" in record:
                queue, _, tenant, route = record["lane"].split(":")
                cells[tenant][f"{record['failure']}:{queue}:{route}:{record['reason']}"] += 1
                members[f"{tenant}:{record['failure']}"][task_id] = int(record["finished_ms"])
            elif "failure" in record:
                yield f"S19 {task_id} is {record['state']} and has a failure"
        stored = {t: {c: int(n) for c, n in raw.items()} for t, raw in self.group("groups").items()}
        if stored != cells:
            yield f"S19 groups are {stored}, recounted {dict(cells)}"
        if (found := self.group("group")) != members:
            yield f"S22 the groups hold {found}, not {dict(members)}"

    def _bytes(self, task_id: str, record: dict[str, str]) -> int:
        inline = sum(len(record.get(name, "")) for name in ("payload", "result", "error"))
        body = len(self.group("body").get(task_id, b""))
        return RECORD_BYTES + inline + body + int(record.get("extra", 0))

    # -- S6, S26 -----------------------------------------------------------------------------------

    def history_is_legal(self) -> Iterator[str]:
        """The events of each task are a path of the state machine that ends where it stands."""
        at: dict[str, str] = {}
        verdicts: Counter[str] = Counter()
        for _, fields in self.one("events") or []:
            moves = {name: ids.split(" ") for name, ids in fields.items() if name != "ms"}
            # One call creates and dispatches at most: what waits comes first where both are told.
            for name in sorted(
                moves, key=lambda name: name.rsplit(":")[-1] in set(STATES) - {"PENDING"}
            ):
                word = name.rsplit(":")[-1]
                state = word if word in STATES else "PENDING"
                for task_id in moves[name]:
                    record = self.records.get(task_id)
                    if word == "CREATED":
                        at.pop(task_id, None)  # created, maybe again after retention took it
                        verdicts.pop(task_id, None)
                    before = at.get(task_id)
                    if before is not None and state not in EDGES[before]:
                        yield f"S26 {task_id} went from {before} to {state}"
                    at[task_id] = state
                    verdicts[task_id] += state in FINAL
        for task_id, state in at.items():
            record = self.records.get(task_id)
            if record and record["state"] != state:
                yield f"S26 {task_id} is {record['state']} but was last told {state}"
            if record and verdicts[task_id] > int(record.get("life", "1")):
                yield f"S6 {task_id} had {verdicts[task_id]} verdicts in {record.get('life', 1)} lives"

    # -- S23 ---------------------------------------------------------------------------------------

    def keys_are_known(self) -> Iterator[str]:
        exact, prefixes = known_keys(self.keys)
        for key in self.dump:
            if key not in exact and not key.startswith(tuple(prefixes)):
                yield f"S23 {key} is no key of store/keys.py"
        for key, left_ms in self.ttl.items():
            if left_ms == -1:
                yield f"S23 {key} would stay for ever"
        for key in self.all:
            if not key.startswith("{") and not key.startswith(known_names()):
                yield f"S23 {key} belongs to no shard"


def known_keys(keys: ShardKeys) -> tuple[set[str], set[str]]:
    """The fixed keys of a shard, and the prefixes of those with a name at their end."""
    exact, prefixes = set(), set()
    for name, member in vars(ShardKeys).items():
        if isinstance(member, property):
            exact.add(getattr(keys, name))
        elif callable(member) and not name.startswith("_"):
            prefixes.add(getattr(keys, name)("\0").split("\0")[0])
    return exact, prefixes


def known_names(namespace: str = "ts") -> tuple[str, ...]:
    keys = NamespaceKeys(namespace)
    return tuple(_names_of(keys))


def _names_of(keys: NamespaceKeys) -> Iterable[str]:
    for name, member in vars(NamespaceKeys).items():
        if isinstance(member, property):
            yield getattr(keys, name)
        elif callable(member) and not name.startswith("_"):
            yield getattr(keys, name)("\0").split("\0")[0]
