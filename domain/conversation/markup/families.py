"""Families of models: how each writes thoughts and calls, and which one a model belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from mlxbun.domain.conversation.markup import harmony
from mlxbun.domain.conversation.markup.json_calls import (
    MISTRAL,
    Headed,
    bare_json,
    kimi_name,
    mistral,
    tagged_json,
)
from mlxbun.domain.conversation.markup.literal_calls import (
    FUNCTION_GEMMA,
    GEMMA4,
    Unquoted,
    bare_expressions,
    lfm,
    llama4,
)
from mlxbun.domain.conversation.markup.reader import (
    CallMarkup,
    MarkupReader,
    ThoughtTags,
    tagged_answer,
)
from mlxbun.domain.conversation.markup.tagged_calls import (
    DSML,
    GLM,
    LONGCAT,
    MINICPM,
    MINIMAX,
    MUSE,
    QWEN,
    Tags,
)
from mlxbun.domain.conversation.markup.tools import offered
from mlxbun.domain.conversation.parts import PlainText, TextReader

DEEPSEEK = Headed(
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)
KIMI = Headed(
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    kimi_name,
)

CUSTOM = Headed("<function=", ">", "</function>")

THINK = ThoughtTags("<think>", "</think>")
THOUGHTS = (
    THINK,
    ThoughtTags("<longcat_think>", "</longcat_think>"),
    ThoughtTags("[THINK]", "[/THINK]", sentinel=True),
    ThoughtTags("<|channel>thought", "<channel|>", sentinel=True, token="<|channel>"),
    ThoughtTags("<|think:start|>", "<|think:end|>", sentinel=True),
    ThoughtTags("<|START_THINKING|>", "<|END_THINKING|>", sentinel=True),
    ThoughtTags("<seed:think>", "</seed:think>"),
    ThoughtTags("◁think▷", "◁/think▷"),
)


class Notation(Struct, frozen=True):
    """How a family writes calls.  `tokens` may be special tokens, which text leaves out."""

    name: str
    calls: CallMarkup
    tokens: frozenset[str] = frozenset()
    stops: tuple[str, ...] = ()


class Family(Struct, frozen=True):
    """What must be known of a model to read its answers.

    `notation` is None for Harmony, whose messages say themselves what they are.
    """

    notation: Notation | None
    thought: ThoughtTags | None = None

    @property
    def name(self) -> str:
        return self.notation.name if self.notation else "harmony"

    @property
    def stops(self) -> tuple[str, ...]:
        """Tokens that end an answer, whether the model's folder says so or not."""
        return self.notation.stops if self.notation else harmony.STOPS

    def shown(self, *, with_tools: bool) -> frozenset[str]:
        """Return the special tokens whose spelling the reader must see."""
        if self.notation is None:
            return frozenset(harmony.TOKENS)
        thought = self.thought
        tokens = {thought.open, thought.close, thought.token} if thought else set[str]()
        return frozenset(tokens | (self.notation.tokens if with_tools else frozenset())) - {""}

    def thinks_after(self, prompt: str) -> bool:
        """Tell whether the end of a rendered prompt has opened a thought."""
        return self.thought is not None and prompt[-64:].rstrip().endswith(self.thought.open)

    def reader(
        self,
        tools: Sequence[Mapping[str, Any]],
        prompt: str,
        *,
        one_call: bool = False,
        no_repeats: bool = False,
    ) -> TextReader:
        """Return what takes an answer to `prompt` apart.

        `tools`, of the OpenAI protocol, are those that may be called; without any, markup of
        calls is text.  With `one_call` the answer is done after the first, with
        `no_repeats` where a call is made again.
        """
        known = offered(tools)
        calls = bool(tools)
        if self.notation is None:
            answer = harmony.harmony_answer(known if calls else None)
        elif self.thought is None and not calls:
            return PlainText()
        else:
            markup = self.notation.calls if calls else None
            thinking = self.thinks_after(prompt)
            answer = tagged_answer(self.thought, markup, known, thinking=thinking)
        return MarkupReader(answer, calls=calls, one_call=one_call, no_repeats=no_repeats)


def _headed(name: str, headed: Headed) -> Notation:
    shapes = {headed.section[0]: headed.first, headed.open: headed.one}
    tokens = {headed.open, headed.middle, headed.close, *headed.section}
    return Notation(name, CallMarkup(shapes, sentinel=True), frozenset(tokens))


def _tagged(name: str, tags: Tags, sentinel: str = "") -> Notation:
    """Return the notation of `tags`, which all contain the token `sentinel` if there is one."""
    shapes = {tags.section[0]: tags.first, tags.call: tags.one}
    calls = CallMarkup({k: v for k, v in shapes.items() if k}, sentinel=bool(sentinel))
    ends = (tags.call_end, tags.key, tags.key_end, tags.value, tags.value_end)
    return Notation(name, calls, frozenset((*tags.section, *ends, sentinel)) - {""})


def _unquoted(name: str, unquoted: Unquoted) -> Notation:
    calls = CallMarkup({unquoted.open: unquoted.shape}, sentinel=True)
    return Notation(name, calls, frozenset((unquoted.open, unquoted.close, unquoted.delimiter)))


HERMES = Notation(
    "hermes",
    CallMarkup({"<tool_call>": tagged_json("</tool_call>")}, {"{": bare_json}),
    frozenset(("<tool_call>", "</tool_call>")),
)
LLAMA = Notation(
    "llama",
    CallMarkup({"<|python_tag|>": bare_json, CUSTOM.open: CUSTOM.one}, {"{": bare_json}),
    frozenset(("<|python_tag|>",)),
    ("<|eom_id|>", "<|eot_id|>"),
)
GRANITE = Notation(  # and Phi 4
    "granite",
    CallMarkup({"<|tool_call|>": tagged_json("<|/tool_call|>")}, sentinel=True),
    frozenset(("<|tool_call|>", "<|/tool_call|>")),
)
COHERE = Notation(
    "cohere",
    CallMarkup({"<|START_ACTION|>": tagged_json("<|END_ACTION|>")}, sentinel=True),
    frozenset(("<|START_ACTION|>", "<|END_ACTION|>")),
)
LLAMA4 = Notation(
    "llama4",
    CallMarkup({"<|python_start|>": llama4}, {"[": bare_expressions, "{": bare_json}),
    frozenset(("<|python_start|>", "<|python_end|>")),
    ("<|eom|>", "<|eot|>"),
)
LFM = Notation(
    "lfm",
    CallMarkup({"<|tool_call_start|>": lfm}, sentinel=True),
    frozenset(("<|tool_call_start|>", "<|tool_call_end|>")),
)
MISTRAL_CALLS = Notation(
    "mistral",
    CallMarkup({MISTRAL.open: mistral}, sentinel=True),
    frozenset((MISTRAL.open, MISTRAL.middle, "[CALL_ID]")),
)
NOTATIONS = {
    notation.name: notation
    for notation in (
        HERMES,
        LLAMA,
        GRANITE,
        COHERE,
        LLAMA4,
        LFM,
        MISTRAL_CALLS,
        _tagged("qwen", QWEN),
        _tagged("glm", GLM),
        _tagged("longcat", LONGCAT),
        _tagged("minicpm", MINICPM),
        _tagged("minimax", MINIMAX),
        _tagged("muse", MUSE),
        _tagged("dsml", DSML, "｜DSML｜"),
        _unquoted("gemma4", GEMMA4),
        _unquoted("function-gemma", FUNCTION_GEMMA),
        _headed("deepseek", DEEPSEEK),
        _headed("kimi", KIMI),
    )
}

# What in a chat template names a notation: all of the strings, in this order.
_IN_TEMPLATE = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("minimax", ("<minimax:tool_call>",)),
    ("muse", ("<atem:function_calls>",)),
    ("dsml", ("｜DSML｜",)),
    ("gemma4", ("<|tool_call>", "<tool_call|>")),
    ("function-gemma", ("<start_function_call>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("glm", ("<arg_key>",)),
    ("lfm", ("<|tool_call_start|>",)),
    ("lfm", ("<|tool_list_start|>",)),
    ("qwen", ("<function=", "<parameter=")),
    ("kimi", (KIMI.section[0],)),
    ("minicpm", ('<function name="', '<param name="')),
    ("mistral", (MISTRAL.open,)),
    ("deepseek", (DEEPSEEK.open,)),
    ("cohere", ("<|START_ACTION|>",)),
    ("granite", ("<|tool_call|>",)),
    ("hermes", ("<tool_call>",)),
    ("llama4", ("<|python_start|>",)),
    ("llama", ("<|python_tag|>",)),
    ("llama", ("<|start_header_id|>", '"parameters"')),
    ("llama", ("<|start_header_id|>", "<function=")),
)
# What in a vocabulary does, for templates that say nothing of calls.
_IN_VOCABULARY = (
    ("harmony", ("<|channel|>", "<|message|>", "<|constrain|>")),
    ("lfm", ("<|tool_call_start|>", "<|tool_call_end|>")),
    ("gemma4", ("<|tool_call>", "<tool_call|>")),
    ("mistral", ("[TOOL_CALLS]", "[AVAILABLE_TOOLS]")),
    ("deepseek", (DEEPSEEK.open,)),
    ("kimi", (KIMI.section[0],)),
    ("llama", ("<|python_tag|>", "<|eom_id|>")),
)


def family_of(template: str, has_token: Callable[[str], bool]) -> Family:
    """Return the family of a model by its chat template, and where that is silent its tokens.

    Calls of a model that nothing is known of are read as the most common notation, Hermes.
    """
    named = [name for name, signs in _IN_TEMPLATE if all(sign in template for sign in signs)]
    if "tools" not in template:  # such models are told of tools in the notation of all others
        named = [name for name in named if name == "harmony"]
    else:
        named += [name for name, signs in _IN_VOCABULARY if all(map(has_token, signs))]
    name = next(iter(named), "hermes")
    if name == "harmony":
        return Family(None)
    return Family(NOTATIONS[name], _thought(template, has_token))


def _thought(template: str, has_token: Callable[[str], bool]) -> ThoughtTags | None:
    """Return the tags that a model thinks between; None for one that does not think."""
    in_vocabulary = [tags for tags in THOUGHTS if has_token(tags.close)]
    in_template = [tags for tags in THOUGHTS if tags.close in template]
    both = [tags for tags in in_vocabulary if tags in in_template]
    return next(iter([*both, *in_template, *in_vocabulary]), None)
