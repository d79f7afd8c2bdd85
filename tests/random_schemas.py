"""Random JSON schemas, the kind that people write, with every keyword that is enforced.

Deterministic by seed.  Each is satisfiable but for accidents, which the translation refuses.
"""

from __future__ import annotations

import random
from typing import Any

PATTERNS = (
    "^[a-z]{1,5}$", "^[A-Z][a-z]+$", "[0-9]", "^(red|green|blue)$", r"^\d{3}-\d{4}$", "^x-",
    r"^[^\s@]+@[a-z]+\.[a-z]{2,3}$", "^(?!a)[a-c]{2,4}$", "é|ü", r"^.{2,6}$", r'^"[a-z]*"$',
)  # fmt: skip
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email", "hostname", "uri", "binary")
NAMES = ("id", "name", "a", "b", "kind", "über", 'qu"ote', "a/b~c", "x-1", "items")
CONSTANTS: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    2.5,
    -7,
    "red",
    "a b",
    'say "hi"\n',
    [],
    {},
    [1, "a"],
)


def schema(seed: int) -> Any:
    """Return the schema of `seed`."""
    rng = random.Random(seed)
    return _Maker(rng).whole()


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._definitions: dict[str, Any] = {}

    def whole(self) -> Any:
        made = self.any(3) if self._chance(0.3) else self.object(3)
        if self._definitions and isinstance(made, dict):
            return {"$schema": "https://json-schema.org/draft/2020-12/schema",
                    "$defs": self._definitions, **made}  # fmt: skip
        return made

    def any(self, depth: int) -> Any:
        simple = (
            self.string,
            self.number,
            self.integer,
            self.listed,
            self.boolean,
            self.denied,
        )
        deep = (
            self.object,
            self.array,
            self.union,
            self.both,
            self.tagged,
            self.reference,
            self.counted,
            self.conditional,
            self.exclusive,
            self.evaluated,
        )
        chosen = self._rng.choice(simple if depth <= 0 or self._chance(0.5) else deep)
        made = chosen(depth)
        if isinstance(made, dict) and self._chance(0.1):
            made = {"title": "a title", "description": "what it is", **made}
        return made

    def boolean(self, depth: int) -> Any:
        return self._rng.choice(({"type": "boolean"}, {"type": "null"}, True, {}))

    def string(self, depth: int) -> Any:
        made: dict[str, Any] = {"type": "string"}
        kind = self._rng.randrange(5)
        if kind == 0:
            made["pattern"] = self._rng.choice(PATTERNS)
        elif kind == 1:
            made["format"] = self._rng.choice(FORMATS)
        elif kind == 2:
            made["minLength"] = self._rng.randrange(4)
            made["maxLength"] = made["minLength"] + self._rng.randrange(1, 12)
        elif kind == 3:
            made[self._rng.choice(("minLength", "maxLength"))] = self._rng.randrange(1, 9)
        return made

    def integer(self, depth: int) -> Any:
        made: dict[str, Any] = {"type": "integer"}
        if self._chance(0.6):
            low = self._rng.randrange(-2000, 2000)
            made[self._rng.choice(("minimum", "exclusiveMinimum"))] = low
            if self._chance(0.6):
                high = low + self._rng.randrange(2, 5000)
                made[self._rng.choice(("maximum", "exclusiveMaximum"))] = high
        if self._chance(0.2):
            made["multipleOf"] = self._rng.choice((2, 3, 5, 7, 10, 25, 1))
        return made

    def number(self, depth: int) -> Any:
        made: dict[str, Any] = {"type": "number"}
        if self._chance(0.6):
            low = self._rng.randrange(-20000, 20000) / self._rng.choice((1, 8, 100, 1000))
            made[self._rng.choice(("minimum", "exclusiveMinimum"))] = low
            if self._chance(0.6):
                high = low + self._rng.randrange(2, 5000) / 4
                made[self._rng.choice(("maximum", "exclusiveMaximum"))] = high
        elif self._chance(0.3):
            made["multipleOf"] = self._rng.choice((0.5, 0.25, 2, 10))
        return made

    def listed(self, depth: int) -> Any:
        if self._chance(0.4):
            return {"const": self._rng.choice(CONSTANTS)}
        return {"enum": self._rng.sample(CONSTANTS, self._rng.randrange(1, 6))}

    def denied(self, depth: int) -> Any:
        return self._rng.choice((
            {"type": "string", "not": {"enum": ["", "red"]}},
            {"type": "string", "not": {"pattern": "^[a-m]"}, "maxLength": 9},
            {"type": "integer", "not": {"const": 3}},
            {"type": "integer", "not": {"minimum": 3, "maximum": 9}},
            {"type": "number", "not": {"type": "integer"}},
            {"not": {"type": ["string", "null", "object", "array"]}},
            {"not": {"enum": [None, "red", 1, []]}},
            {"type": ["string", "integer"], "not": {"anyOf": [{"const": "red"}, {"minimum": 2}]}},
        ))  # fmt: skip

    def counted(self, depth: int) -> Any:
        made: dict[str, Any] = {"type": "array", "items": {"type": ["integer", "string"]}}
        kind = self._rng.randrange(4)
        if kind == 0:
            made["items"] = {"type": "integer", "minimum": 1, "maximum": self._rng.randrange(2, 8)}
            made["uniqueItems"] = True
        elif kind == 1:
            made = {"type": "array", "prefixItems": [self.any(0)]}
            made["unevaluatedItems"] = self._rng.choice((False, {"type": "string"}))
        else:
            made["contains"] = self._rng.choice(({"type": "string"}, {"minimum": 3}, {"const": 0}))
            made["minContains"] = self._rng.randrange(0, 3)
            if kind == 3:
                made["maxContains"] = made["minContains"] + self._rng.randrange(1, 3)
        if self._chance(0.5):
            made["maxItems"] = 6
        return made

    def conditional(self, depth: int) -> Any:
        if self._chance(0.3):
            return {"if": {"type": "string"}, "then": self.string(0), "else": self.integer(0)}
        made: dict[str, Any] = {
            "type": "object",
            "properties": {"kind": {"enum": ["circle", "square", 1]}, "value": self.any(0)},
            "if": {"properties": {"kind": {"const": "circle"}}},
            "then": {"properties": {"a": self.any(0)}, "required": ["value"]},
        }
        if self._chance(0.5):
            made["required"] = ["kind"]
        if self._chance(0.5):
            made["else"] = {"properties": {"b": self.any(0)}, "required": ["b"]}
        return made

    def exclusive(self, depth: int) -> Any:
        kind = self._rng.randrange(4)
        if kind == 0:
            return {"oneOf": [{"type": "integer", "maximum": 9}, {"type": "number", "minimum": 3}]}
        if kind == 1:
            return {"oneOf": [{"type": "string", "maxLength": 3}, {"pattern": "^[a-c]"}]}
        made: dict[str, Any] = {"type": "object"}
        made["properties"] = {name: self.any(0) for name in ("a", "b", "id")}
        if kind == 2:
            made["oneOf"] = [{"required": ["a"]}, {"required": ["b"]}]
        else:
            made["not"] = {"required": ["a", "b"]}
        return made

    def evaluated(self, depth: int) -> Any:
        base = {"type": "object", "properties": {"a": self.any(0)}}
        made: dict[str, Any] = {"allOf": [base], "properties": {"b": self.any(0)}}
        made["unevaluatedProperties"] = self._rng.choice((False, {"type": "integer"}))
        if self._chance(0.3):
            made["dependentSchemas"] = {"b": {"properties": {"id": self.any(0)}}}
        return made

    def array(self, depth: int) -> Any:
        made: dict[str, Any] = {"type": "array"}
        if self._chance(0.2):
            made["prefixItems"] = [self.any(depth - 1) for _ in range(self._rng.randrange(1, 3))]
            made["items"] = False if self._chance(0.5) else self.any(0)
        elif self._chance(0.15):
            return {"type": "array", "items": {"enum": [1, "a", None]}, "uniqueItems": True}
        elif self._chance(0.15):
            return {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 3},
                    "contains": {"const": 2}, "maxItems": 4}  # fmt: skip
        else:
            made["items"] = self.any(depth - 1)
        if self._chance(0.5):
            made["minItems"] = self._rng.randrange(0, 3)
        if self._chance(0.6):
            made["maxItems"] = made.get("minItems", 0) + self._rng.randrange(0, 4)
        return made

    def object(self, depth: int) -> Any:
        if self._chance(0.12):
            return self.mapping(depth)
        names = self._rng.sample(NAMES, self._rng.randrange(0, 5))
        made: dict[str, Any] = {
            "type": "object",
            "properties": {name: self.any(depth - 1) for name in names},
            "required": [name for name in names if self._chance(0.6)],
        }
        kind = self._rng.randrange(6)
        if kind <= 1:
            made["additionalProperties"] = False
        elif kind == 2:
            made["additionalProperties"] = self.any(0)
        elif kind == 3 and names:
            made["minProperties"] = self._rng.randrange(0, len(names) + 1)
            made["maxProperties"] = len(names)
        elif kind == 4 and len(names) > 1:
            made["dependentRequired"] = {names[0]: [names[1]]}
        elif kind == 5:
            made["patternProperties"] = {"^x-": self.any(0)}
        return made

    def mapping(self, depth: int) -> Any:
        names = self._rng.choice(
            ({"pattern": "^[a-z]{1,4}$"}, {"enum": ["a", "b", "c"]}, {"maxLength": 3}, True)
        )
        return {
            "type": "object",
            "propertyNames": names,
            "additionalProperties": self.any(depth - 1),
        }

    def union(self, depth: int) -> Any:
        parts = [self.any(depth - 1) for _ in range(self._rng.randrange(1, 4))]
        return {"anyOf": parts} if self._chance(0.8) else {"anyOf": [*parts, {"type": "null"}]}

    def both(self, depth: int) -> Any:
        one = {"properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]}
        other = {"properties": {"a": {"maximum": 50}, "b": self.any(0)}}
        return {"type": "object", "allOf": [one, other]}

    def tagged(self, depth: int) -> Any:
        def case(kind: str) -> Any:
            properties = {"kind": {"const": kind}, "value": self.any(depth - 1)}
            return {"type": "object", "properties": properties, "required": ["kind", "value"]}

        return {"oneOf": [case("circle"), case("square")]}

    def reference(self, depth: int) -> Any:
        name = self._rng.choice(("node", "colour"))
        if name == "colour":
            self._definitions[name] = {"type": "string", "enum": ["red", "green"]}
        else:
            nothing_or_more = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}
            properties = {"value": {"type": "integer"}, "next": nothing_or_more}
            self._definitions[name] = {
                "type": "object",
                "properties": properties,
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{name}"}

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability
