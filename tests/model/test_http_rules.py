"""The rules of HTTP targets: spellings of URLs, headers, and addresses that must not be reached."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasksched.errors import Invalid
from tasksched.model.http_rules import (
    DENIED,
    HEADERS_MAX,
    URL_MAX,
    check_headers,
    check_url,
    embedded,
    host_of,
    is_denied,
    retry_after_ms,
)

GOOD_URLS = [
    "http://example.com",
    "https://example.com/",
    "HTTPS://Example.COM/Path?x=1&y=%20#"[:-1],
    "https://example.com:8443/a;b=c/d,e?filter[x]=1&y=a/b?c@d:e",
    "https://xn--mnchen-3ya.de/",
    "http://a_b.internal-name.example./x",
    "http://localhost:8080/hook",
    "http://127.0.0.1/",  # spelled right; whether it may be reached is asked when it is
    "http://[::1]:80/",
    "http://[2606:2800:220:1:248:1893:25c8:1946]/",
    "http://[::ffff:1.2.3.4]/",
    "https://1.2.3.4.example.com/",
    "https://user.example.com/@user",
    "https://example.com?x",
]

ODD_ADDRESSES = [
    "2130706433",
    "0x7f000001",
    "0X7F000001",
    "0177.0.0.1",
    "127.1",
    "127.0.1",
    "0",
    "0x7f.1",
    "1.2.3.0x4",
    "1.2.3.4.",
    "127.0.0.1.",
    "256.1.1.1",
    "1.2.3.4.5",
    "00.0.0.0",
    "①②⑦.⓪.⓪.①",
    "１２７.0.0.1",
    "127.0.0.1%00.example.com",
    "127.0.0.1\0.example.com",
    "[127.0.0.1]",
    "[::1%25eth0]",
    "[::1%eth0]",
    "[fe80::1%1]",
    "[1]",
    "[:::1]",
    "::1",
    "",
]

BAD_URLS = [
    "http://example.com@127.0.0.1/",
    "http://user:secret@example.com/",
    "http://@example.com/",
    "http://127.0.0.1\\@example.com/",
    "http:\\\\example.com/",
    "http://example.com/\\x",
    "http://example.com#@127.0.0.1/",
    "http://example.com/#fragment",
    "http://127.0.0.1#.example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "javascript://example.com/",
    "unix://tmp/socket",
    "//example.com/",
    "/path",
    "example.com",
    "http:example.com",
    "http:/example.com",
    "http:///example.com",
    "http://",
    "http://:80/",
    "http://example.com:0/",
    "http://example.com:65536/",
    "http://example.com:99999/",
    "http://example.com:/",
    "http://example.com:80:80/",
    "http://example.com:８０/",
    "http://-example.com/",
    "http://example-.com/",
    "http://exa mple.com/",
    "http://example..com/",
    "http://.example.com/",
    "http://ex%61mple.com/",
    "http://münchen.de/",
    "http://example.com/ü",
    "http://example.com/%zz",
    "http://example.com/%",
    "http://example.com/<x>",
    "http://example.com/a b",
    f"http://{'a' * 64}.com/",
    f"http://{'a.' * 127}com/",
    "http://example.com/" + "x" * URL_MAX,
]


@pytest.mark.parametrize("url", GOOD_URLS)
def test_a_plain_url_passes_unchanged(url):
    assert url == check_url(url)


@pytest.mark.parametrize("host", ODD_ADDRESSES)
def test_an_address_in_an_odd_spelling_is_refused(host):
    with pytest.raises(Invalid) as caught:
        check_url(f"http://{host}/", "/target/url")

    assert ["/target/url"] == [problem.pointer for problem in caught.value.problems]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_parsers_could_read_in_two_ways_is_refused(url):
    with pytest.raises(Invalid):
        check_url(url)


@pytest.mark.parametrize("character", [*map(chr, range(0x21)), "\x7f", "\x85", "\xa0", "\u2028"])
@pytest.mark.parametrize(
    "place", ["{}http://a.com/", "http://a{}.com/", "http://a.com/{}", "http://a.com{}"]
)
def test_controls_and_white_space_are_refused_anywhere(character, place):
    with pytest.raises(Invalid):
        check_url(place.format(character))


@pytest.mark.parametrize("value", [None, 1, b"http://a.com", ["http://a.com"], {}])
def test_only_a_string_is_a_url(value):
    with pytest.raises(Invalid, match="string"):
        check_url(value)


def test_a_secret_in_a_url_is_not_repeated():
    with pytest.raises(Invalid) as caught:
        check_url("http://user:hunter2@example.com/")

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Example.com:80/x", "example.com"),
        ("http://example.com./", "example.com"),
        ("http://[::1]:80", "::1"),
        ("https://1.2.3.4?x", "1.2.3.4"),
    ],
)
def test_the_host_of_a_url(url, host):
    assert host == host_of(url)


@given(st.text(max_size=60))
def test_whatever_passes_has_a_host_that_reads_one_way(text):
    try:
        url = check_url(f"http://{text}")
    except Invalid:
        return
    host = host_of(url)
    assert host.isascii()
    assert not set(host) & set("@\\#%? \t\r\n")


# -- headers ----------------------------------------------------------------------------------------


def test_headers_come_as_an_object_or_as_pairs():
    pairs = (("Authorization", "Bearer x"), ("X-Trace", ""))

    assert pairs == check_headers(dict(pairs))
    assert pairs == check_headers([list(pair) for pair in pairs])
    assert () == check_headers({})


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "X Y", "X:", "X\r\nY", "X\0", "Ünïcode", "X(", "X,Y", 1, None,
        "Host", "host", "CONTENT-LENGTH", "Transfer-Encoding", "Connection", "TE", "Trailer",
        "Upgrade", "Expect", "Keep-Alive", "Proxy-Authorization", "proxy-x", "webhook-id",
        "Webhook-Signature", "tasksched-fence", "Tasksched-Anything", "Idempotency-Key",
        "Accept-Encoding",
    ],
)  # fmt: skip
def test_a_header_that_is_no_token_or_not_the_users_is_refused(name):
    with pytest.raises(Invalid):
        check_headers([(name, "x")])


@pytest.mark.parametrize(
    "value",
    [
        "a\r\nEvil: 1",
        "a\nb",
        "a\rb",
        "a\0b",
        "a\x1bb",
        "a\x7fb",
        "ü",
        "€",
        " a",
        "a ",
        "\t",
        1,
        None,
    ],
)
def test_a_value_that_is_not_printable_ascii_is_refused(value):
    with pytest.raises(Invalid):
        check_headers({"X-A": value})


def test_every_bad_header_is_named_and_no_value_repeated():
    with pytest.raises(Invalid) as caught:
        check_headers({"Host": "a", "X-Fine": "b", "X-~/": "secret\n"}, "/target/headers")

    pointers = [problem.pointer for problem in caught.value.problems]
    assert ["/target/headers/Host", "/target/headers/X-~0~1"] == pointers
    assert "secret" not in repr(caught.value.problems)


def test_headers_are_bounded_in_number_and_bytes():
    assert HEADERS_MAX == len(check_headers({f"X-{n}": "" for n in range(HEADERS_MAX)}))
    with pytest.raises(Invalid, match="at most 64"):
        check_headers({f"X-{n}": "" for n in range(HEADERS_MAX + 1)})
    with pytest.raises(Invalid, match="8192 bytes"):
        check_headers({"X": "x" * 8192})


@pytest.mark.parametrize("value", [None, "X: 1", 5, [1], [["a"]], [["a", "b", "c"]], ["ab"]])
def test_anything_else_is_no_headers(value):
    with pytest.raises(Invalid):
        check_headers(value)


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=20), max_size=4))
def test_headers_that_pass_are_one_line_each(headers):
    try:
        pairs = check_headers(headers)
    except Invalid:
        return
    text = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    assert len(pairs) == text.encode("ascii").count(b"\r\n") == len(text.splitlines())


# -- addresses --------------------------------------------------------------------------------------

# What ipaddress calls global or would be missed by looking at one form only is among these.
CLOSED = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1",
    "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.7",
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
    "::ffff:8.8.8.8", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b::808:808",
    "64:ff9b:1::1", "64:ff9b:1:a9fe:a9:fe00::", "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1", "2002:a9fe:a9fe::1", "2002:7f00:1::", "2002:808:808::1", "3fff::1", "5f00::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "febf::1", "fec0::1", "ff02::1",
]  # fmt: skip
OPEN = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "128.0.0.1",
    "169.253.255.255", "172.15.255.255", "172.32.0.0", "192.0.1.1", "192.167.255.255", "198.17.255.255",
    "198.20.0.0", "223.255.255.255", "168.63.129.15", "93.184.216.34",
    "2606:4700:4700::1111", "2a00:1450:4001::1", "2001:4860:4860::8888", "2600::1",
]  # fmt: skip


@pytest.mark.parametrize("address", CLOSED)
def test_closed_addresses_are_denied(address):
    assert is_denied(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", OPEN)
def test_open_addresses_are_not(address):
    assert not is_denied(ipaddress.ip_address(address))
    assert [] == embedded(ipaddress.ip_address(address))


WRAP = {
    "compatible": lambda v4: v4,
    "mapped": lambda v4: 0xFFFF << 32 | v4,
    "translated": lambda v4: 0xFFFF << 48 | v4,
    "nat64": lambda v4: 0x64FF9B << 96 | v4,
    "local nat64, 96 bits": lambda v4: 0x64FF9B0001 << 80 | v4,
    "local nat64, 48 bits": lambda v4: 0x64FF9B0001 << 80 | (v4 >> 16) << 64 | (v4 & 0xFFFF) << 40,
    "6to4": lambda v4: 0x2002 << 112 | v4 << 80 | 1,
    "teredo server": lambda v4: 0x2001 << 112 | v4 << 64 | 5,
    "teredo client": lambda v4: 0x2001 << 112 | 0x08080808 << 64 | (v4 ^ 0xFFFF_FFFF),
}
denied_v4 = st.one_of(
    [
        st.integers(int(net.network_address), int(net.broadcast_address))
        for net in DENIED
        if net.version == 4
    ]
)


@pytest.mark.parametrize("wrapper", WRAP)
@given(v4=denied_v4.filter(lambda v4: v4 > 1))
def test_a_denied_ipv4_address_is_found_inside_any_wrapper(wrapper, v4):
    found = embedded(ipaddress.IPv6Address(WRAP[wrapper](v4)))

    assert ipaddress.IPv4Address(v4) in found
    assert any(is_denied(inner) for inner in found)


# -- Retry-After ------------------------------------------------------------------------------------

NOW_MS = 1_772_445_600_000  # 2026-03-02T10:00:00Z


@pytest.mark.parametrize(
    ("value", "wait_ms"),
    [
        ("120", 120_000),
        ("0", 0),
        (" 5 ", 5_000),
        ("Mon, 02 Mar 2026 10:02:00 GMT", 120_000),
        ("Monday, 02-Mar-26 10:02:00 GMT", 120_000),
        ("Mon, 02 Mar 2026 09:00:00 GMT", None),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("²", None),
        ("", None),
        (None, None),
        ("864000", 864_000_000),
    ],
)
def test_retry_after_is_seconds_or_a_date(value, wait_ms):
    assert wait_ms == retry_after_ms(value, NOW_MS)
