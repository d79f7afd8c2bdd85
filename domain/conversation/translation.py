"""What a protocol's conversation is as chat messages, and the way back from a field at fault."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from mlxbun.domain.refusal import Refused


class Translation(Struct, frozen=True):
    """Chat messages, and for their fields the request's own that they came from.

    `tools` are definitions that stood among the messages, `notes` what is not kept to, `begun` what
    the answer begins with.
    """

    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    origins: dict[str, str] = field(default_factory=dict[str, str])
    tools: list[tuple[object, str]] = field(default_factory=list[tuple[object, str]])
    notes: set[str] = field(default_factory=set[str])
    begun: str = ""

    def located(self, refused: Refused) -> Refused:
        """Return `refused` in the request's own field, in its message too."""
        said = refused.field
        if said is None:
            return refused
        known = [at for at in self.origins if said == at or said.startswith((f"{at}.", f"{at}["))]
        if not known:
            return refused
        at = max(known, key=len)
        message = refused.message.replace(at, self.origins[at])
        return Refused(refused.code, message, self.origins[at] + said[len(at) :])
