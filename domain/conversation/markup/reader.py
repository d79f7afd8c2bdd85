"""Reads an answer: thoughts, text, calls.  One machine, whatever the family's markup is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from mlxbun.domain.conversation.markup.json_calls import Shape
from mlxbun.domain.conversation.markup.prose import Prose
from mlxbun.domain.conversation.markup.shown import Shown
from mlxbun.domain.conversation.markup.source import Markers, Source, Steps, accept, ahead
from mlxbun.domain.conversation.markup.tools import Tools
from mlxbun.domain.conversation.parts import Part

# Markup that is cut off at the end is read again as text, in which more may begin: so often.
_MAX_SECOND_LOOKS = 4
_MIN_HALF = 4

Answer = Callable[[Source, Shown], Steps[None]]


class ThoughtTags(Struct, frozen=True):
    """What stands around a thought.  `sentinel` tags are tokens that no prose contains.

    `tokens` are those that tags are made of, where a tag is not one as a whole.  `frames` stand
    around visible text in the same way, and say nothing.
    """

    open: str
    close: str
    sentinel: bool = False
    tokens: frozenset[str] = frozenset()
    frames: tuple[str, ...] = ()


class CallMarkup(Struct, frozen=True):
    """How calls begin, and what reads them from there.

    Calls in `bare` notation begin an answer, or follow another call.  `sentinel` openers are
    tokens that no prose contains; others are not meant in code or quotes.  `closers` that are
    one too many, or cut off, say nothing after a call.
    """

    openers: Mapping[str, Shape]
    bare: Mapping[str, Shape] = {}
    sentinel: bool = False
    closers: frozenset[str] = frozenset()


class MarkupReader:
    """TextReader: runs the steps of an answer over its text."""

    def __init__(
        self, answer: Answer, *, calls: bool, one_call: bool = False, no_repeats: bool = False
    ) -> None:
        self._source = Source()
        self._shown = Shown(calls=calls, one_call=one_call, no_repeats=no_repeats)
        self._steps = answer(self._source, self._shown)

    @property
    def done(self) -> bool:
        return self._shown.done

    def feed(self, text: str) -> tuple[Part, ...]:
        if not text or self.done:
            return ()
        self._source.text += text
        next(self._steps, None)
        return self._shown.take()

    def flush(self, *, cut: bool = False) -> tuple[Part, ...]:
        self._source.ended, self._source.cut = True, cut
        next(self._steps, None)
        self._shown.end()
        return self._shown.take()


def tagged_answer(
    tags: ThoughtTags | None, markup: CallMarkup | None, tools: Tools, *, thinking: bool
) -> Answer:
    """Return the steps of an answer that marks thoughts and calls within its text.

    `thinking` says that the prompt has opened a thought.
    """
    openers = dict(markup.openers) if markup else {}
    bare = dict(markup.bare) if markup else {}
    sentinel = markup is not None and markup.sentinel
    closers = markup.closers if markup else frozenset[str]()
    frames = tags.frames if tags else ()
    thoughts = (tags.open, tags.close) if tags else ()
    markers = Markers([*openers, *closers, *frames, *thoughts])

    def answer(source: Source, shown: Shown) -> Steps[None]:
        prose, num_looks = Prose(), 0

        def show(text: str) -> None:
            shown.text(text)
            prose.add(text)

        if thinking and tags:
            yield from _thought(source, shown, tags)
        while True:
            source.mark()
            opener = (yield from ahead(source, tuple(bare))) if bare and shown.blank else ""
            shape = bare.get(opener)
            if shape is None:
                at, opener = markers.find(source.text)
                if not opener:
                    show(source.take(at))
                    if source.ended:
                        after = shown.blank and shown.num_calls > 0
                        begun = closers if after else openers if cut_off(source) else ()
                        if any(marker.startswith(source.text) for marker in begun):
                            shown.drop_space()
                        else:
                            show(source.take_all())
                        return
                    yield
                    continue
                show(source.take(at))
                source.mark()
                source.take(len(opener))
                if opener in frames or (opener in closers and shown.blank and shown.num_calls > 0):
                    continue
                if tags and opener == tags.open and (shown.blank or tags.sentinel):
                    yield from _thought(source, shown, tags)
                    continue
                if tags and opener == tags.close and shown.blank and not shown.num_calls:
                    shown.thought_ends()  # it closes what the prompt had closed
                    continue
                shape = openers.get(opener)
                if shape is None or (prose.quotes() and not sentinel):
                    show(opener)
                    continue
                yield from accept(source, opener)  # some write it twice
            calls = yield from shape(source, tools)
            if calls:
                source.forget()
                shown.calls(calls)
            elif calls is not None:
                show(source.forget())
            elif source.cut:
                source.forget()  # half a call: not sent, and its markup is no text for anybody
                shown.drop_space()
                return
            else:
                source.rewind()
                num_looks += source.ended
                enough = num_looks > _MAX_SECOND_LOOKS
                at = len(source.text) if enough else source.text.index(opener) + len(opener)
                show(source.take(at))

    return answer


def cut_off(source: Source) -> bool:
    """Tell whether what is left of a text that the limit cut off is half a marker.

    A sign or two may be prose.
    """
    return source.cut and len(source.text) >= _MIN_HALF


def _thought(source: Source, shown: Shown, tags: ThoughtTags) -> Steps[None]:
    """Show a thought up to its end; without an end, all that comes is one."""
    source.forget()
    shown.thought_begins()
    yield from accept(source, tags.open)  # some models repeat what the prompt ends with
    close = Markers([tags.close])
    while True:
        at, marker = close.find(source.text)
        shown.thought(source.take(at))
        if source.ended and not marker:
            half = cut_off(source)
            rest = source.take_all()
            shown.thought("" if half else rest)
        if marker:
            source.take(len(marker))
            shown.thought_ends()
            return
        if source.ended:
            return
        yield
