"""`mlxbun generate` and `mlxbun chat`: a model in this process, talking on this terminal.

The event loop runs on a thread of its own, so that this one can wait for a line or for Ctrl-C
as ordinary programs do.
"""

from __future__ import annotations

import importlib
import logging.config
import secrets
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal
from msgspec import Struct

from mlxbun.adapters.cli.serve import ensure_model, logging_configuration
from mlxbun.adapters.cli.wiring import Wiring
from mlxbun.application.chat_prompt import Chat
from mlxbun.application.options import Option, UsageError
from mlxbun.application.prepare import Preparer
from mlxbun.application.prepare import generate as submit
from mlxbun.application.row_specs import Ask, Prepared
from mlxbun.application.service import Service
from mlxbun.application.settings import MODEL_OPTIONS, Settings, parse_with
from mlxbun.domain.conversation import Part, Reasoning, Text
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling_policy import SamplingRequest

DEFAULT_MAX_TOKENS = 256
_SYSTEM = Option("system", ("--system",), "text", "what the model is told first", "Prompt")
_SEED = Option(
    "seed", ("--seed",), "integer", "the same seed draws the same answer", "Sampling",
    low=-(2**63), high=2**63 - 1,
)  # fmt: skip
GENERATE_OWN = (
    Option("prompt", ("--prompt", "-p"), "text", "what to answer; without it, stdin", "Prompt"),
    Option("raw", ("--raw",), "switch", "continue the bare text, without chat template", "Prompt"),
    _SYSTEM,
    _SEED,
)
CHAT_OWN = (_SYSTEM, _SEED)
HELP = "/reset forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer"

Message = dict[str, str]


class Answer(Struct, frozen=True):
    """What came back, and what it took."""

    text: str
    num_prompt_tokens: int
    num_tokens: int
    first_token_seconds: float
    seconds: float

    def statistics(self) -> str:
        decoding = self.seconds - self.first_token_seconds
        rate = f"{(self.num_tokens - 1) / decoding:.1f} tokens/s, " if self.num_tokens > 1 else ""
        return (
            f"[prompt {self.num_prompt_tokens} tokens, answer {self.num_tokens} tokens, {rate}"
            f"first token after {self.first_token_seconds:.2f} s]"
        )


class Talk:
    """A model that answers on `out`, and thinks on `aside`, piece by piece.  One thread uses it."""

    def __init__(
        self,
        portal: BlockingPortal,
        service: Service,
        ask: Ask,
        settings: Settings,
        out: TextIO,
        aside: TextIO,
    ) -> None:
        self._portal = portal
        self._service = service
        self._preparer = Preparer(service)
        self._ask = ask
        self._arguments = template_arguments(settings)
        self._out = out
        self._aside = aside
        self._num_asked = 0
        self.said: list[str] = []  # what was shown of the answer in progress
        self._thinks = False

    def load(self) -> str:
        """Wait for the model; return its id.  Raises what loading it raised."""
        return self._portal.call(self._service.model).card.id

    def answer(self, messages: Sequence[Message]) -> Answer:
        """Show the answer to a conversation.  Raises Refused, or KeyboardInterrupt on Ctrl-C."""
        return self._interruptible(None, messages)

    def continue_text(self, text: str) -> Answer:
        """Show how `text` goes on.  Raises as `answer`."""
        return self._interruptible(text, ())

    def _interruptible(self, text: str | None, messages: Sequence[Message]) -> Answer:
        future = self._portal.start_task_soon(self._run, text, messages)
        try:
            return future.result()
        finally:
            future.cancel()  # frees the row when Ctrl-C came; nothing if it has ended

    async def _run(self, text: str | None, messages: Sequence[Message]) -> Answer:
        self.said, self._thinks = [], False
        self._num_asked += 1
        ask = msgspec.structs.replace(
            self._ask, id=f"terminal-{self._num_asked}", fresh_seed=secrets.randbits(64)
        )
        model = await self._preparer.model()
        if text is not None:
            prepared = await self._preparer.texts(model, [text], ask)
        else:
            chat = Chat(messages, arguments=self._arguments)
            prepared = await self._preparer.chat(model, chat, ask)
        return await self._show(prepared)

    async def _show(self, prepared: Prepared) -> Answer:
        begin = time.monotonic()
        first: float | None = None
        async with submit(self._service, prepared) as generation:
            async for piece in generation.pieces():
                if first is None and piece.tokens:
                    first = time.monotonic()
                for part in piece.parts:
                    self._say(part)
            num_tokens = generation.num_completion_tokens
        end = time.monotonic()
        return Answer(
            "".join(self.said),
            prepared.num_prompt_tokens,
            num_tokens,
            (first or end) - begin,
            end - begin,
        )

    def _say(self, part: Part) -> None:
        if isinstance(part, Reasoning):
            self._aside.write(part.text)
            self._aside.flush()
            self._thinks = True
        elif isinstance(part, Text):
            if self._thinks:
                self._aside.write("\n\n")
                self._aside.flush()
            self._thinks = False
            self.said.append(part.text)
            self._out.write(part.text)
            self._out.flush()


def generate(argv: Sequence[str], environ: Mapping[str, str], wiring: Wiring) -> int:
    """Answer one prompt on stdout, with statistics on stderr."""
    settings, own = parse_with(MODEL_OPTIONS, GENERATE_OWN, argv, environ)
    prompt = own["prompt"] if "prompt" in own else _stdin()
    if not prompt:
        raise UsageError('nothing to answer: say --prompt "...", or write it to stdin')
    if own.get("raw") and "system" in own:
        raise UsageError("--raw has no chat template, so it takes no --system")
    with _talk(settings, own, wiring) as talk:
        talk.load()
        if own.get("raw"):
            answer = talk.continue_text(prompt)
        else:
            answer = talk.answer([*_first_messages(own), {"role": "user", "content": prompt}])
    print(flush=True)
    print(answer.statistics(), file=sys.stderr)
    return 0


def chat(argv: Sequence[str], environ: Mapping[str, str], wiring: Wiring) -> int:
    """Talk until /exit or the end of the input, remembering what was said."""
    settings, own = parse_with(MODEL_OPTIONS, CHAT_OWN, argv, environ)
    with _talk(settings, own, wiring) as talk:
        print(f"{talk.load()}.  {HELP}", file=sys.stderr)
        messages = _first_messages(own)
        for line in _lines():
            match line.strip():
                case "":
                    continue
                case "/exit" | "/quit":
                    break
                case "/reset":
                    messages = _first_messages(own)
                    print("(forgotten)", file=sys.stderr)
                case "/help":
                    print(HELP, file=sys.stderr)
                case text:
                    messages = _turn(talk, [*messages, {"role": "user", "content": text}])
    return 0


def _turn(talk: Talk, messages: list[Message]) -> list[Message]:
    """Answer the last of `messages`; return the conversation after that."""
    try:
        answer = talk.answer(messages)
    except Refused as refused:
        print(f"{refused.message}  (/reset forgets the conversation)", file=sys.stderr)
        return messages[:-1]
    except KeyboardInterrupt:
        print("\n(stopped)", file=sys.stderr)
        text = "".join(talk.said)
    else:
        print(flush=True)
        print(answer.statistics(), file=sys.stderr)
        text = answer.text
    return [*messages, {"role": "assistant", "content": text}]


@contextmanager
def _talk(settings: Settings, own: Mapping[str, Any], wiring: Wiring) -> Generator[Talk]:
    """Open the model of `settings`, fetching it first if it is not here."""
    level = settings.log_level if "log_level" in settings.sources else "warning"
    logging.config.dictConfig(logging_configuration(level))
    ensure_model(settings, wiring, settings.model)
    ask = Ask(
        id="terminal",
        fresh_seed=0,
        sampling=SamplingRequest(seed=own.get("seed")),
        max_tokens=settings.max_tokens or DEFAULT_MAX_TOKENS,
    )
    if sys.stderr.isatty():
        print(f"loading {settings.model} ...", file=sys.stderr)
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(wiring.open_service(settings)) as service,
    ):
        yield Talk(portal, service, ask, settings, sys.stdout, sys.stderr)


def template_arguments(settings: Settings) -> dict[str, bool]:
    """Return what the settings tell a chat template."""
    return {} if settings.thinking == "auto" else {"enable_thinking": settings.thinking == "on"}


def _first_messages(own: Mapping[str, Any]) -> list[Message]:
    return [{"role": "system", "content": own["system"]}] if "system" in own else []


def _lines() -> Iterator[str]:
    """Yield what the user types.  Ctrl-C gives up the line, Ctrl-D ends."""
    if sys.stdin.isatty():
        importlib.import_module("readline")  # makes input() a line editor
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            yield input(prompt)
        except KeyboardInterrupt:
            print(f"\n{HELP}", file=sys.stderr)
        except EOFError:
            return


def _stdin() -> str:
    if sys.stdin.isatty():
        print("the prompt, then Ctrl-D:", file=sys.stderr)
    return sys.stdin.read().strip()
