"""Paths to handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from mlxbun.adapters.http.answers import Answer, EventStream
from mlxbun.adapters.http.errors import Failed, error_answer
from mlxbun.adapters.http.request import Head, Request
from mlxbun.domain.refusal import Refused

Handler = Callable[[Request], Awaitable[Answer | EventStream]]
# Path: method: handler.  "/x/{id}" takes one more segment, "/x/{id}/y" y of it, "/x/*" all below.
Routes = Mapping[str, Mapping[str, Handler]]


class Router:
    """Finds a request's handler.  A trailing slash means nothing."""

    def __init__(self, routes: Routes) -> None:
        self._exact = {p: methods for p, methods in routes.items() if p[-1] != "*" and "{" not in p}
        self._shaped = [(p.split("/"), methods) for p, methods in routes.items() if "{" in p]
        self._below = [(path[:-1], methods) for path, methods in routes.items() if path[-1] == "*"]

    def find(self, head: Head) -> Handler | Answer:
        """Return the handler, or the answer that there is none: 404, or 405 with Allow."""
        methods = self._methods(head.path)
        if methods is None:
            return error_answer(head, self.nothing_at(head.path))
        method = "GET" if head.method == "HEAD" else head.method
        if method not in methods:
            allow = allowed(methods)
            message = f"{head.path} takes {allow}, not {head.method}"
            return error_answer(head, Failed("method_not_allowed", message), (("allow", allow),))
        return methods[method]

    def allowed(self, path: str) -> str | None:
        """Return the methods of `path` as Allow spells them, None where nothing is."""
        methods = self._methods(path)
        return None if methods is None else allowed(methods)

    def nothing_at(self, path: str) -> Refused:
        """Say so, and where there is something, since base URLs are told without /v1, or twice."""
        near = path.removeprefix("/v1") if path.startswith("/v1/") else f"/v1{path}"
        hint = f"; there is something at {near}" if self._methods(near) is not None else ""
        return Refused("not_found", f"there is nothing at {path}{hint}")

    def _methods(self, path: str) -> Mapping[str, Handler] | None:
        found = self._exact.get(path.rstrip("/") or "/")
        if found is not None:
            return found
        segments = path.rstrip("/").split("/")
        for shape, methods in self._shaped:
            if len(shape) == len(segments) and all(map(_fits, shape, segments)):
                return methods
        return next((m for prefix, m in self._below if path.startswith(prefix)), None)


def _fits(shape: str, segment: str) -> bool:
    return bool(segment) if shape.startswith("{") else shape == segment


def allowed(methods: Mapping[str, Handler]) -> str:
    more = ["HEAD", "OPTIONS"] if "GET" in methods else ["OPTIONS"]
    return ", ".join([*methods, *more])
