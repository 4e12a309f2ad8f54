"""Which pages may start something with a request, and which may write.

A page of another site can send requests to TensorBoard through the browser of whoever opens it. If
the DNS name of that page was made to lead here (DNS rebinding), it can read the answers, too: for
the browser, it is TensorBoard's own page. So to start work, a page needs the same origin. To write,
it needs a loopback name, or one that the flag `--perfadvisor_write_hosts` allows.
"""

from __future__ import annotations

import secrets
from collections.abc import Set as AbstractSet
from ipaddress import ip_address
from urllib.parse import urlsplit

from werkzeug import wrappers

from tb_perfadvisor.plain_text import shell_word
from tb_perfadvisor.plugin.responses import ApiError

TAB_HEADER = "X-Perf-Advisor"
"""Sent by the tab with each request of its own; links in the tab don't send it."""

TOKEN = secrets.token_hex(16)
"""Part of the tab's links to what is made on request; changes when TensorBoard starts."""

WRITE_HOSTS = "--perfadvisor_write_hosts"
# What each browser calls itself, and no page can change.
_BROWSER = "Mozilla/"
_MOST_CHARACTERS = 64
"""Of the name of a client."""


def require_same_origin(request: wrappers.Request) -> None:
    """Refuse a request that a page of another site sent, before it starts or stops anything."""
    if _is_cross_origin(request):
        hint = "Open the tab in TensorBoard."
        raise ApiError(403, "requests from other sites are not allowed.", hint=hint)


def require_known_host(request: wrappers.Request, hosts: AbstractSet[str]) -> None:
    """Refuse a request of a page whose DNS name may lead here only because its owner wants that.

    Behind a proxy that changes the host, the page's name does not lead here.

    `hosts` are the names that are allowed besides loopback names.
    """
    require_same_origin(request)
    page = page_name(request)
    is_rewritten = page not in ("", _host_name(request))
    if not (is_loopback(page) or page in hosts or is_rewritten):
        hint = how_to_allow(page, hosts)
        raise ApiError(403, "pages at this address cannot do that.", hint=hint)


def page_name(request: wrappers.Request) -> str:
    """The name of the host whose page sent a request; empty if it says that it has none.

    Behind a proxy, the host of the request may be another one than that of the page.
    """
    origin = request.headers.get("Origin") or request.headers.get("Referer")
    return _host_name(request) if origin is None else _name_in(origin)


def how_to_allow(page: str, hosts: AbstractSet[str]) -> str:
    """How to allow a page's host to write, besides those that are allowed already."""
    named = ",".join(
        f"[{name}]" if ":" in name else name for name in sorted({*hosts, page or "HOST"})
    )
    return f"Start TensorBoard with `{WRITE_HOSTS}={shell_word(named)}`."


def write_hosts(text: str) -> frozenset[str]:
    """The names in the value of the flag, separated by commas."""
    parts = (part.strip() for part in text.split(","))
    names = (_name_in(part if "://" in part else f"//{part}") for part in parts)
    return frozenset(names) - {""}


def is_loopback(name: str) -> bool:
    """Whether browsers find a host on their own machine, whatever a DNS server says."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def client_of(request: wrappers.Request) -> str:
    """What a page of the tab calls itself, to tell who waits; empty for other programs."""
    return request.headers.get(TAB_HEADER, "")[:_MOST_CHARACTERS]


def _host_name(request: wrappers.Request) -> str:
    return _name_in(f"//{request.headers.get('Host', '')}")


def _name_in(url: str) -> str:
    """The name of the host in a URL, without its port; empty if there is none, as in `null`."""
    try:
        return (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _is_cross_origin(request: wrappers.Request) -> bool:
    """Whether a page of another site sent the request; programs other than browsers do not count.

    Browsers say so in `Sec-Fetch-Site`, which also works behind proxies that rewrite the host. Over
    plain http from another host they send only `Origin` or `Referer`, which are useless behind such
    a proxy. There the tab proves itself: by a header, which other sites can send only after a
    preflight request, or in its links by a token, which they cannot read. A browser that sends
    none of these may follow another site's wish.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")
    if request.headers.get(TAB_HEADER) or request.args.get("token") == TOKEN:
        return False
    origin = request.headers.get("Origin") or request.headers.get("Referer")
    if origin is None:
        return request.headers.get("User-Agent", "").startswith(_BROWSER)
    hosts = {request.host, request.headers.get("X-Forwarded-Host", "")} - {""}
    try:
        return urlsplit(origin).netloc not in hosts
    except ValueError:
        return True
