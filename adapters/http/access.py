"""Who may ask: the API key, and which web pages (CORS)."""

from __future__ import annotations

import hmac

from msgspec import Struct

from mlxbun.adapters.http.answers import Headers
from mlxbun.adapters.http.request import HeaderMap
from mlxbun.domain.refusal import Refused

_EXPOSED = "x-request-id, request-id, retry-after, warning"


class Access(Struct, frozen=True):
    """`api_key` None lets everybody in.  `allow_origins` empty is no CORS; "*" is any page."""

    api_key: str | None = None
    allow_origins: tuple[str, ...] = ()

    def check_key(self, headers: HeaderMap) -> None:
        """Raise Refused unless the key came along, as Bearer or as x-api-key."""
        if self.api_key is None:
            return
        scheme, _, bearer = (headers.get("authorization") or "").partition(" ")
        said = [headers.get("x-api-key") or "", bearer if scheme.lower() == "bearer" else ""]
        expected = self.api_key.encode()
        # Both are compared, in time that does not depend on where they differ.
        if not any([hmac.compare_digest(key.strip().encode(), expected) for key in said]):
            what = "the one that came is another" if any(said) else "none came"
            raise Refused("unauthorized", f"this server asks for its API key; {what}")

    def cors(self, headers: HeaderMap) -> Headers:
        """Return what lets the page behind `headers` read the answer; nothing if it may not."""
        origin = headers.get("origin")
        if origin is None or not self.allow_origins:
            return ()
        if "*" in self.allow_origins:
            allowed = "*"
        elif origin in self.allow_origins:
            allowed = origin
        else:
            return (("vary", "origin"),)
        return (
            ("access-control-allow-origin", allowed),
            ("access-control-expose-headers", _EXPOSED),
            ("vary", "origin"),
        )

    def preflight(self, headers: HeaderMap, methods: str) -> Headers:
        """Return what a preflight asks for, besides `cors`.

        The asked headers are echoed: a `*` would not cover Authorization.
        """
        if not any(name == "access-control-allow-origin" for name, _ in self.cors(headers)):
            return ()
        asked = headers.get("access-control-request-headers")
        private = headers.get("access-control-request-private-network")
        return (
            ("access-control-allow-methods", methods),
            ("access-control-allow-headers", asked or "authorization, content-type, x-api-key"),
            ("access-control-max-age", "600"),
            *((("access-control-allow-private-network", "true"),) if private == "true" else ()),
        )
