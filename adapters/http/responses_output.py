"""The output of one response: what an answer is made of, as items and as the events of a stream.

Items stand in the order in which their parts came.  One is open at a time; a call that is cut
off before its arguments are complete is begun in a stream, but it is never done, and no item of
the output.  A call of a tool that clients know by its type is begun when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from mlxbun.adapters.http.openai_types import ChatLogprob
from mlxbun.adapters.http.responses_events import (
    AnyEvent,
    ArgumentsDelta,
    ArgumentsDone,
    InputDelta,
    InputDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    SummaryAdded,
    SummaryDelta,
    SummaryDone,
    SummaryTextDone,
    TextDelta,
    TextDone,
)
from mlxbun.adapters.http.responses_types import (
    ApplyPatchCallItem,
    ClientCallItem,
    CustomCallItem,
    FunctionCallItem,
    LocalShellCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ShellCallItem,
    SummaryText,
)
from mlxbun.domain.conversation import (
    CallArguments,
    CallBegun,
    CallEnded,
    Part,
    Reasoning,
    Text,
)
from mlxbun.domain.conversation.response_client_tools import ClientKind, asked_of_client
from mlxbun.domain.conversation.response_items import sealed
from mlxbun.domain.conversation.response_tools import INPUT, ResponseTools

_OBJECT = msgspec.json.Decoder(dict[str, Any])
_FREE_TEXT = msgspec.json.Decoder(dict[str, str])


class Output:
    """Gathers items from parts.  Events wait in `events` until they are taken.

    `new_id` makes an id with a prefix; with `seals`, thoughts are repeated as `encrypted_content`;
    one that is `silent` is of an answer that nobody wants, and has no items.
    """

    def __init__(
        self,
        tools: ResponseTools,
        new_id: Callable[[str], str],
        *,
        seals: bool = False,
        silent: bool = False,
    ) -> None:
        self.num_events = 0
        self.silent = silent
        self._tools = tools
        self._new_id = new_id
        self._seals = seals
        self._events: list[AnyEvent] = []
        self._done: list[OutputItem] = []
        self._num_begun = 0
        self._open: OutputItem | None = None
        self._client: ClientKind | None = None  # whose call is open, until it is whole
        self._texts: list[str] = []  # of the open item
        self._logprobs: list[ChatLogprob] = []

    @property
    def items(self) -> list[OutputItem]:
        """What there is so far: an open text as it stands, an open call not at all."""
        match self._open:
            case MessageItem():
                return [*self._done, self._message("incomplete")]
            case ReasoningItem():
                return [*self._done, self._thoughts()]
            case _:
                return list(self._done)

    def event(self, kind: type[Any], **fields: Any) -> None:
        """Add an event with the next number."""
        self._events.append(kind(sequence_number=self.num_events, **fields))
        self.num_events += 1

    def take_events(self) -> list[AnyEvent]:
        events, self._events = self._events, []
        return events

    def feed(self, parts: Sequence[Part], logprobs: Sequence[ChatLogprob] = ()) -> None:
        """Add what a piece brought.  `logprobs` are of its text's tokens."""
        if self.silent:
            return
        for part in parts:
            match part:
                case Text():
                    self._text(part.text, logprobs)
                    logprobs = ()
                case Reasoning():
                    self._thought(part.text)
                case CallBegun():
                    self._begin_call(part.name)
                case CallArguments():
                    self._argue(part.text)
                case CallEnded():
                    self._end_call()

    def end(self, *, cut: bool) -> None:
        """Close what is open.  An answer without text and calls is an empty message.

        `cut` says that the answer ended where it was not to end.
        """
        self._close("incomplete" if cut else "completed")
        if self.silent:
            return
        if all(isinstance(item, ReasoningItem) for item in self._done):
            self._begin_message()
            self._close("incomplete" if cut else "completed")

    def _text(self, text: str, logprobs: Sequence[ChatLogprob]) -> None:
        item = self._open
        if not isinstance(item, MessageItem):
            self._close("completed")
            item = self._begin_message()
        self._texts.append(text)
        if logprobs:
            self._logprobs += logprobs
        number, self.num_events = self.num_events, self.num_events + 1
        delta = TextDelta(  # as `_of_item`, for the one event that comes with every token
            sequence_number=number,
            item_id=item.id,
            output_index=self._num_begun - 1,
            delta=text,
            logprobs=list(logprobs),
        )
        self._events.append(delta)

    def _thought(self, text: str) -> None:
        if not isinstance(self._open, ReasoningItem):
            self._close("completed")
            self._begin(ReasoningItem(id=self._new_id("rs_"), summary=[]))
            self._of_item(SummaryAdded, part=SummaryText(""))
        self._texts.append(text)
        self._of_item(SummaryDelta, delta=text)

    def _begin_message(self) -> MessageItem:
        item = MessageItem(id=self._new_id("msg_"), status="in_progress", content=[])
        self._begin(item)
        self._of_item(PartAdded, part=OutputText(""))
        return item

    def _begin_call(self, prompt_name: str) -> None:
        self._close("completed")
        tool = self._tools.called(prompt_name)
        if tool.kind != "function" and tool.kind != "custom":
            self._client, self._texts = tool.kind, []
            return
        said: dict[str, Any] = {
            "status": "in_progress",
            "call_id": self._new_id("call_"),
            "name": tool.name,
            "namespace": UNSET if tool.namespace is None else tool.namespace,
        }
        if tool.kind == "custom":
            self._begin(CustomCallItem(id=self._new_id("ctc_"), input="", **said))
        else:
            self._begin(FunctionCallItem(id=self._new_id("fc_"), arguments="", **said))

    def _argue(self, text: str) -> None:
        self._texts.append(text)
        if isinstance(self._open, FunctionCallItem):
            self._of_item(ArgumentsDelta, delta=text)

    def _end_call(self) -> None:
        arguments = "".join(self._texts)
        if self._client is not None:
            whole = self._client_call(self._client, arguments)
            self._begin(whole)
            self._finish(replace(whole, status="completed"))
            return
        match self._open:
            case FunctionCallItem() as item:
                self._of_item(ArgumentsDone, name=item.name, arguments=arguments)
                self._finish(replace(item, status="completed", arguments=arguments))
            case CustomCallItem() as item:
                said = _free_text(arguments)
                self._of_item(InputDelta, delta=said)
                self._of_item(InputDone, input=said)
                self._finish(replace(item, status="completed", input=said))
            case _:
                raise AssertionError("a call ended that had not begun")

    def _client_call(self, kind: ClientKind, arguments: str) -> ClientCallItem:
        asked = asked_of_client(kind, _OBJECT.decode(arguments))
        said: dict[str, Any] = {"status": "in_progress", "call_id": self._new_id("call_")}
        match kind:
            case "local_shell":
                return LocalShellCallItem(id=self._new_id("lsh_"), action=asked, **said)
            case "shell":
                return ShellCallItem(id=self._new_id("sh_"), action=asked, **said)
            case "apply_patch":
                return ApplyPatchCallItem(id=self._new_id("apc_"), operation=asked, **said)

    def _close(self, status: Any) -> None:
        """Close an open text; an open call was cut off, and stays as it is."""
        match self._open:
            case MessageItem():
                item = self._message(status)
                (part,) = item.content
                self._of_item(TextDone, text=part.text, logprobs=part.logprobs)
                self._of_item(PartDone, part=part)
                self._finish(item)
            case ReasoningItem():
                thoughts = self._thoughts()
                (summary,) = thoughts.summary
                self._of_item(SummaryTextDone, text=summary.text)
                self._of_item(SummaryDone, part=summary)
                self._finish(thoughts)
            case _:
                self._open = self._client = None

    def _message(self, status: Any) -> MessageItem:
        assert isinstance(self._open, MessageItem)
        text = OutputText("".join(self._texts), (), list(self._logprobs))
        return replace(self._open, status=status, content=[text])

    def _thoughts(self) -> ReasoningItem:
        assert isinstance(self._open, ReasoningItem)
        text = "".join(self._texts)
        seal = sealed(text) if self._seals else None
        return replace(self._open, summary=[SummaryText(text)], encrypted_content=seal)

    def _begin(self, item: OutputItem) -> None:
        self._open, self._client, self._texts, self._logprobs = item, None, [], []
        self._num_begun += 1
        self.event(ItemAdded, output_index=self._num_begun - 1, item=item)

    def _finish(self, item: OutputItem) -> None:
        self.event(ItemDone, output_index=self._num_begun - 1, item=item)
        self._done.append(item)
        self._open = None

    def _of_item(self, kind: type[Any], **fields: Any) -> None:
        assert self._open is not None
        self.event(kind, item_id=self._open.id, output_index=self._num_begun - 1, **fields)


def _free_text(arguments: str) -> str:
    """Return the text that a custom tool is called with; arguments of another form as they are."""
    try:
        return _FREE_TEXT.decode(arguments)[INPUT]
    except (msgspec.DecodeError, KeyError):  # a ValidationError is one
        return arguments
