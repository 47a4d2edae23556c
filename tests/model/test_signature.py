"""Signatures, against the reference library of Standard Webhooks, and against whoever tampers."""

import base64
import json
import time
from datetime import UTC, datetime

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from tasksched.errors import Invalid, Unauthorized
from tasksched.model.signature import check_secret, new_secret, sign, verify

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 24).decode()
NOW_S = 1_764_000_000
BODY = '{"type":"task.failed","data":{"id":"t1","text":"ü"}}'.encode()


def signed(*secrets, message="msg_1", at_s=NOW_S, body=BODY):
    return {
        "webhook-id": message,
        "webhook-timestamp": str(at_s),
        "webhook-signature": sign(secrets, message, at_s, body),
    }


def secret_of(count):
    return "whsec_" + base64.b64encode(bytes(count)).decode()


# -- the other library ------------------------------------------------------------------------------


@given(secret=st.binary(min_size=24, max_size=64), text=st.text(max_size=50))
def test_the_reference_library_verifies_what_we_sign(secret, text):
    written = "whsec_" + base64.b64encode(secret).decode()
    body = json.dumps(text).encode()
    headers = signed(written, at_s=int(time.time()), body=body)

    assert text == standardwebhooks.Webhook(written).verify(body, headers)


@pytest.mark.parametrize("body", [BODY, b""])
def test_we_verify_what_the_reference_library_signs(body):
    signature = standardwebhooks.Webhook(SECRET).sign(
        "msg_1", datetime.fromtimestamp(NOW_S, UTC), body.decode()
    )

    assert signature == sign([SECRET], "msg_1", NOW_S, body)
    verify([SECRET], {**signed(SECRET), "webhook-signature": signature}, body, now_s=NOW_S)


def test_a_body_need_not_be_text():
    verify([SECRET], signed(SECRET, body=b"\xff\0"), b"\xff\0", now_s=NOW_S)


# -- rotation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [[SECRET], [OTHER], [SECRET, OTHER], [new_secret(), OTHER]])
def test_while_a_secret_is_replaced_either_one_verifies(known):
    verify(known, signed(SECRET, OTHER), BODY, now_s=NOW_S)


@pytest.mark.parametrize("secret", [SECRET, OTHER])
def test_the_reference_library_too_verifies_with_either(secret):
    headers = signed(SECRET, OTHER, at_s=int(time.time()))

    standardwebhooks.Webhook(secret).verify(BODY, headers)


def test_each_secret_makes_one_signature():
    assert "" == sign([], "m", 1, b"")
    one, two = sign([SECRET, OTHER], "m", 1, b"").split(" ")
    assert [one, two] == [sign([SECRET], "m", 1, b""), sign([OTHER], "m", 1, b"")]
    assert one.startswith("v1,")


# -- tampering --------------------------------------------------------------------------------------

GOOD = signed(SECRET)
SIGNATURE = GOOD["webhook-signature"]


def refused(secrets, headers, body=BODY, now_s=NOW_S):
    with pytest.raises(Unauthorized) as caught:
        verify(secrets, headers, body, now_s=now_s)
    return str(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-id": "msg_2"},
        {"webhook-id": ""},
        {"webhook-timestamp": str(NOW_S + 1)},
        {"webhook-timestamp": ""},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": f"{NOW_S}.0"},
        {"webhook-timestamp": f" {NOW_S}"},
        {"webhook-timestamp": f"+{NOW_S}"},
        {"webhook-timestamp": "9" * 5000},
        {"webhook-timestamp": "١٧٦٤٠٠٠٠٠٠"},
        {"webhook-signature": ""},
        {"webhook-signature": SIGNATURE[3:]},
        {"webhook-signature": SIGNATURE[:-1]},
        {"webhook-signature": SIGNATURE.replace("v1,", "v2,")},
        {"webhook-signature": SIGNATURE.swapcase()},
        {"webhook-signature": "v1,ü€\udcff"},
        {"webhook-signature": sign([OTHER], "msg_1", NOW_S, BODY)},
        {"webhook-signature": sign([SECRET], "msg_1", NOW_S, BODY + b" ")},
    ],
)
def test_a_changed_header_is_refused(changed):
    refused([SECRET], {**GOOD, **changed})


@pytest.mark.parametrize("position", range(len(BODY)))
def test_a_changed_byte_of_the_body_is_refused(position):
    body = bytearray(BODY)
    body[position] ^= 1

    refused([SECRET], GOOD, bytes(body))


@pytest.mark.parametrize("name", list(GOOD))
def test_a_missing_header_is_refused(name):
    refused([SECRET], {key: value for key, value in GOOD.items() if key != name})


def test_the_parts_cannot_be_cut_elsewhere():
    """id and timestamp are what stands before the dots, whatever the body begins with."""
    headers = signed(SECRET, message="a", body=b"1.b")

    refused([SECRET], {**headers, "webhook-id": f"a.{NOW_S}"}, b"b")


@pytest.mark.parametrize("secrets", [[], [OTHER], [new_secret()]])
def test_whoever_has_another_secret_refuses(secrets):
    refused(secrets, GOOD)


def test_no_text_repeats_a_secret_or_a_signature():
    text = refused([OTHER], GOOD)

    assert OTHER not in text
    assert SIGNATURE not in text


@pytest.mark.parametrize(
    ("now_s", "fits"),
    [(NOW_S - 301, False), (NOW_S - 300, True), (NOW_S + 300, True), (NOW_S + 301, False)],
)
def test_a_message_is_fresh_for_five_minutes(now_s, fits):
    if fits:
        verify([SECRET], GOOD, BODY, now_s=now_s)
    else:
        assert "300 s" in refused([SECRET], GOOD, now_s=now_s)


def test_without_a_time_it_is_now():
    verify([SECRET], signed(SECRET, at_s=int(time.time())), BODY)
    with pytest.raises(Unauthorized):
        verify([SECRET], signed(SECRET, at_s=int(time.time()) - 600), BODY)


def test_names_of_headers_are_taken_in_any_case_and_strange_signatures_skipped():
    headers = {name.upper(): value for name, value in GOOD.items()}
    headers["WEBHOOK-SIGNATURE"] = f"v1a,AAAA nonsense  {SIGNATURE}"

    verify([SECRET], headers, BODY, now_s=NOW_S)


# -- secrets ----------------------------------------------------------------------------------------


def test_a_new_secret_passes_and_is_new():
    made = {new_secret() for _ in range(100)}

    assert 100 == len(made)
    for secret in made:
        assert secret == check_secret(secret)
        assert 32 == len(base64.b64decode(secret.removeprefix("whsec_")))


@pytest.mark.parametrize("count", [24, 32, 64])
def test_a_secret_has_24_to_64_bytes(count):
    assert secret_of(count) == check_secret(secret_of(count))


@pytest.mark.parametrize(
    "value",
    [
        secret_of(23), secret_of(65), "", "whsec_", SECRET[6:], SECRET[:-1], SECRET + "=", SECRET + "\n",
        " " + SECRET, SECRET.replace("whsec_", "WHSEC_"), "whsec_" + SECRET, SECRET[:10] + "-_" + SECRET[12:],
        "whsec_" + "ü" * 44, None, 5, b"whsec_", [SECRET],
    ],
)  # fmt: skip
def test_anything_else_is_no_secret_and_is_not_repeated(value):
    with pytest.raises(Invalid) as caught:
        check_secret(value, "/notify/0/secret")

    assert ["/notify/0/secret"] == [problem.pointer for problem in caught.value.problems]
    assert SECRET[8:30] not in str(caught.value)
    with pytest.raises(Invalid):
        sign([value], "m", 1, b"")
