"""Resuming: a request that was interrupted, and is sent again, goes on where it stopped.

Stands before the engine.  What was asked, all of it, names the answer; where a checkpoint has
that name it is read first, which holds nobody else up.
"""

from __future__ import annotations

import hashlib
import threading

import msgspec
from msgspec.structs import replace

from mlxbun.application.generation_disk import GenerationDisk
from mlxbun.application.requests import Mailbox, RequestSpec, Resume, Submitter
from mlxbun.domain.blocks import Namespace
from mlxbun.domain.generation_checkpoint import (
    FORMAT,
    GenerationCheckpoint,
    GenerationKey,
    is_usable,
)
from mlxbun.domain.sampling import NO_LOGPROBS, FinishReason, RequestId

PATIENCE_SECONDS = 10.0  # that a disk gets to give back an answer

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def generation_key(namespace: Namespace, spec: RequestSpec) -> GenerationKey:
    """Return the name of a row's answer.

    All that is asked of it is in the name, but not who asks.  A greedy row has no seed.
    """
    params = spec.params
    asked = replace(
        spec,
        request_id=RequestId(""),
        params=replace(params, seed=0) if params.greedy else params,
        generation=None,
        resume=None,
        session=None,
        boundaries=(),
        grammar=None,
    )
    grammar = spec.grammar.digest if spec.grammar is not None else None
    head = bytes([FORMAT]) + bytes.fromhex(namespace)
    return GenerationKey(hashlib.sha256(head + _encoder.encode((asked, grammar))).hexdigest())


class Resuming:
    """A Submitter that looks for what an earlier attempt left.  Any thread may call.

    A disk that has not answered after `patience_seconds` is waited for no longer: the answer
    begins anew.
    """

    def __init__(
        self, engine: Submitter, disk: GenerationDisk, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._engine, self._disk = engine, disk
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._reading: set[RequestId] = set()

    def submit(self, spec: RequestSpec, mailbox: Mailbox) -> None:
        key = generation_key(self._disk.namespace, spec)
        if not self._disk.has(key):
            self._engine.submit(replace(spec, generation=key), mailbox)
            return
        with self._lock:
            self._reading.add(spec.request_id)
        enough = threading.Timer(self._patience_seconds, self._found, (key, spec, mailbox, None))
        enough.daemon = True

        def then(found: Resume | None) -> None:
            enough.cancel()
            self._found(key, spec, mailbox, found)

        enough.start()
        self._disk.load(key, spec.prompt_ids, then)

    def finish(self, request_id: RequestId, reason: FinishReason) -> None:
        self._engine.finish(request_id, reason)

    def cancel(self, request_id: RequestId) -> None:
        with self._lock:
            self._reading.discard(request_id)
        self._engine.cancel(request_id)

    def _found(
        self, key: GenerationKey, spec: RequestSpec, mailbox: Mailbox, resume: Resume | None
    ) -> None:
        if resume is not None:
            checkpoint = GenerationCheckpoint(key, resume.token_ids, (), resume.logprobs)
            told = spec.params.logprobs != NO_LOGPROBS
            if not is_usable(checkpoint, spec.max_tokens, spec.stop_ids, told):
                resume = None
        with self._lock:
            if spec.request_id not in self._reading:
                return  # its client left meanwhile, or would not wait
            self._reading.discard(spec.request_id)
            self._engine.submit(replace(spec, generation=key, resume=resume), mailbox)
