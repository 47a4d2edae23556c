"""Rules in English."""

import pytest
from hypothesis import given
from tests.model.schedule.oracle import examples, meanings
from tests.model.schedule.test_cron_simulation import cron

from tasksched.model.schedule import Cron, Delay, Every, RRule
from tasksched.model.schedule.describe import describe


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("30 2 * * *", "At 02:30 every day"),
        ("@hourly", "Every hour, on the hour"),
        ("5 * * * *", "At minute 5 of every hour"),
        ("* * * * *", "Every minute"),
        ("* 2 * * *", "Every minute from 02:00 to 02:59"),
        ("*/15 * * * *", "Every 15 minutes"),
        ("*/7 * * * *", "At minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
        ("*/15 9-17 * * MON-FRI", "Every 15 minutes from 09:00 to 17:45 on Monday to Friday"),
        ("0 9-17 * * 1-5", "Every hour from 09:00 to 17:00 on Monday to Friday"),
        ("30 */2 * * *", "Every 2 hours from 00:30"),
        ("*/5 */3 * * *", "Every 5 minutes in every third hour from 00:00"),
        (
            "*/27 8-11,14-18 * * *",
            "At minutes 0, 27 and 54 of every hour in hours 8 to 11 and 14 to 18",
        ),
        ("0 0 * * FRI-SUN", "At 00:00 on Friday to Sunday"),
        ("0 12 1-31 * 1", "At 12:00 every day"),
        ("0 0 13 * FRI", "At 00:00 on day 13 of the month or on Friday"),
        ("0 0 */13 * FRI", "At 00:00 on days 1, 14 and 27 of the month if that is Friday"),
        ("0 0 1,15 1,7 *", "At 00:00 on days 1 and 15 of January and July"),
        ("0 0 * 6-8 *", "At 00:00 in June to August"),
        ("0 0 L * *", "At 00:00 on the last day of every month"),
        ("0 0 L-2 * *", "At 00:00 on the third last day of every month"),
        ("0 0 15W * *", "At 00:00 on the working day nearest to day 15 of every month"),
        ("0 0 LW * *", "At 00:00 on the last working day of every month"),
        ("0 9 * * 5L", "At 09:00 on the last Friday of the month"),
        ("0 9 * * MON#2", "At 09:00 on the second Monday of the month"),
        ("30 0 9 * * 1", "At 09:00:30 on Monday"),
        ("* * * * * *", "Every second"),
        ("2 * * * * *", "At second 2 of every minute"),
        ("*/10 0 * * * *", "Every 10 seconds at minute 0 of every hour"),
        ("0 0 12 1 1 ? 2027-2028", "At 12:00 on day 1 of January in 2027 and 2028"),
    ],
)
def test_cron(text, sentence):
    assert describe(Cron(text, tz="Europe/Paris")) == f"{sentence}, Europe/Paris"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("FREQ=DAILY", "Every day at 00:00"),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR;BYHOUR=9", "Every 2 weeks on Monday and Friday at 09:00"),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO;WKST=SU", "Every 2 weeks on Monday (weeks begin on Sunday) at 00:00"),
        ("FREQ=MONTHLY;BYDAY=-1FR;COUNT=1", "Every month on the last Friday of the month at 00:00, once"),
        ("FREQ=MONTHLY;BYMONTHDAY=1,2,3,-1", "Every month on days 1 to 3 and the last day of the month at 00:00"),
        ("FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR", "Every month on Friday if that is on day 13 of the month at 00:00"),
        ("FREQ=YEARLY;BYYEARDAY=100", "Every year on day 100 of the year at 00:00"),
        ("FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", "Every year on Monday in week 20 of the year at 00:00"),
        ("FREQ=YEARLY;BYDAY=6MO", "Every year on the 6th Monday of the year at 00:00"),
        ("FREQ=YEARLY;BYMONTH=3;BYDAY=1MO", "Every year on the first Monday of the month in March at 00:00"),
        ("FREQ=HOURLY;INTERVAL=5", "Every 5 hours at minute 0"),
        ("FREQ=MINUTELY;BYHOUR=9,10,11;BYSECOND=5", "Every minute at second 5 in hours 9 to 11"),
        ("FREQ=DAILY;BYHOUR=9;BYMINUTE=0;UNTIL=20301231", "Every day at 09:00, until 31 December 2030"),
        ("FREQ=DAILY;UNTIL=20301231T120000", "Every day at 00:00, until 12:00 on 31 December 2030"),
        ("FREQ=DAILY;UNTIL=20301231T120000Z", "Every day at 00:00, until 2030-12-31T12:00:00.000Z"),
        (
            "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;COUNT=9",
            "Every month on Monday to Friday at 00:00 but only the last of these in each month, 9 times",
        ),
    ],
)  # fmt: skip
def test_recurrence(text, sentence):
    rule = RRule(text, tz="Europe/Paris").bind("s", 1_770_000_000_000)
    assert describe(rule) == f"{sentence}, Europe/Paris"


def test_a_rule_without_its_start_says_what_its_text_says():
    assert describe(RRule("FREQ=WEEKLY")) == "Every week, UTC"
    assert (
        describe(RRule("FREQ=WEEKLY;INTERVAL=2;WKST=SU"))
        == "Every 2 weeks (weeks begin on Sunday), UTC"
    )
    assert describe(RRule("FREQ=DAILY;BYHOUR=9;BYMINUTE=30")) == "Every day at 09:30, UTC"


def test_elapsed_time():
    assert describe(Every("15m")) == "Every 15 minutes"
    assert describe(Every("1h")) == "Every hour"
    assert (
        describe(Every("1d2h3m4s5ms")) == "Every 1 day 2 hours 3 minutes 4 seconds 5 milliseconds"
    )
    assert describe(Delay("1m")) == "1 minute after each run has ended"
    bounded = Every("1h", start_at="2026-01-01T00:00:00Z", end_at="2027-01-01T00:00:00Z")
    assert describe(bounded) == (
        "Every hour, from 2026-01-01T00:00:00.000Z, until 2027-01-01T00:00:00.000Z"
    )


@examples(120)
@given(meanings(dense=False), meanings(dense=False))
def test_one_sentence_means_one_set_of_times(first, second):
    rules = [cron(meaning, "UTC", ("next", "first")) for meaning in (first, second)]
    sentences = [describe(rule) for rule in rules]
    assert all(sentence[0].isupper() and "  " not in sentence for sentence in sentences)
    if sentences[0] == sentences[1]:
        assert rules[0].between(0, 2**60, 50) == rules[1].between(0, 2**60, 50)
