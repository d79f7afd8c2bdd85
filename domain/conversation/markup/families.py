"""Families of models: how each writes thoughts and calls, and which one a model belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from mlxbun.domain.conversation.markup import harmony
from mlxbun.domain.conversation.markup.json_calls import MISTRAL
from mlxbun.domain.conversation.markup.notations import DEEPSEEK, KIMI, NOTATIONS, Notation
from mlxbun.domain.conversation.markup.reader import MarkupReader, ThoughtTags, tagged_answer
from mlxbun.domain.conversation.markup.tools import offered
from mlxbun.domain.conversation.parts import PlainText, TextReader

THINK = ThoughtTags("<think>", "</think>")
THOUGHTS = (
    THINK,
    ThoughtTags("<longcat_think>", "</longcat_think>"),
    ThoughtTags("[THINK]", "[/THINK]", sentinel=True),
    ThoughtTags("<|channel>thought", "<channel|>", sentinel=True, tokens=frozenset(["<|channel>"])),
    ThoughtTags("<|think:start|>", "<|think:end|>", sentinel=True),
    ThoughtTags("<|START_THINKING|>", "<|END_THINKING|>", sentinel=True),
    ThoughtTags("<seed:think>", "</seed:think>"),
    ThoughtTags("◁think▷", "◁/think▷"),
    ThoughtTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
)


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
        tokens = {thought.open, thought.close, *thought.tokens} if thought else set[str]()
        return frozenset(tokens | (self.notation.tokens if with_tools else frozenset()))

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


# What in a chat template names a notation: all of the strings, in this order.
_IN_TEMPLATE = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("minimax", ("<minimax:tool_call>",)),
    ("muse", ("<atem:function_calls>",)),
    ("dsml", ("｜DSML｜",)),
    ("gemma4", ("<|tool_call>", "<tool_call|>")),
    ("function-gemma", ("<start_function_call>",)),
    ("kimi3", ("<|open|>", "<|close|>", "<|sep|>")),
    ("longcat", ("<longcat_tool_call>",)),
    ("seed", ("<seed:tool_call>",)),
    ("glm", ("<arg_key>",)),
    ("lfm", ("<|tool_call_start|>",)),
    ("lfm", ("<|tool_list_start|>",)),
    ("qwen", ("<function=", "<parameter=")),
    ("kimi", (KIMI.section[0],)),
    ("minicpm", ('<function name="', '<param name="')),
    ("mistral", (MISTRAL.open,)),
    ("deepseek", (DEEPSEEK.open,)),
    ("cohere", ("<|START_ACTION|>",)),
    ("apertus", ("<|tools_prefix|>",)),
    ("nemotron", ("<TOOLCALL>",)),
    ("call-list", ("<tool_calls>",)),
    ("olmo", ("<function_calls>",)),
    ("granite", ("<|tool_call|>",)),
    ("hermes", ("<tool_call>",)),
    ("llama4", ("<|python_start|>",)),
    ("llama", ("<|python_tag|>",)),
    ("llama", ("<|start_header_id|>", '"parameters"')),
    ("llama", ("<|start_header_id|>", "<function=")),
)
# What in a vocabulary does, for templates that say nothing of calls.
_IN_VOCABULARY = (
    ("kimi3", ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")),
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
    notation = NOTATIONS[name]
    return Family(notation, notation.thought or _thought(template, has_token))


def _thought(template: str, has_token: Callable[[str], bool]) -> ThoughtTags | None:
    """Return the tags that a model thinks between; None for one that does not think."""
    in_vocabulary = [tags for tags in THOUGHTS if has_token(tags.close)]
    in_template = [tags for tags in THOUGHTS if tags.close in template]
    both = [tags for tags in in_vocabulary if tags in in_template]
    return next(iter([*both, *in_template, *in_vocabulary]), None)
