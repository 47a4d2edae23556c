"""The case corpus, accounted for: every case is run by some test, or stands here with the reason.

A test names the cases it runs in its id, its name or its docstring. The cron cases are run from the
file itself (``tests/model/schedule/test_schedule_corpus.py``).
"""

import json
from pathlib import Path

TESTS = Path(__file__).parents[1]
CASES = [json.loads(line) for line in (TESTS / "cases" / "cases.jsonl").read_text().splitlines()]
RUN_FROM_THE_FILE = {"cron.next", "cron.prev"}

NOT_YET: dict[str, str] = {}


def sources() -> str:
    """All tests but this one, with ids spelt as in the corpus (names of functions have no dash)."""
    texts = [path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    return "\n".join(texts)


def is_named(case_id: str, text: str) -> bool:
    return case_id in text or case_id.replace("-", "_") in text


def test_every_case_is_run_or_its_absence_explained():
    text = sources()
    missing = [
        case["id"]
        for case in CASES
        if case["input"]["kind"] not in RUN_FROM_THE_FILE
        and case["id"] not in NOT_YET
        and not is_named(case["id"], text)
    ]
    assert missing == []


def test_what_is_run_by_now_is_no_longer_excused():
    text = sources()
    assert [case_id for case_id in NOT_YET if is_named(case_id, text)] == []
    assert set(NOT_YET) <= {case["id"] for case in CASES}
