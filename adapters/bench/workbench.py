"""The models and servers that the acceptance table is measured on, started when first wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from mlxbun.adapters.bench.client import Client
from mlxbun.adapters.bench.load import LoadRun, RequestShape, run_load
from mlxbun.adapters.bench.models import end_ids, endless_copy, find_model
from mlxbun.adapters.bench.prompts import Prompts, words_for
from mlxbun.adapters.bench.servers import ServerProcess, start_mlx_lm, start_ours

Size = Literal["tiny", "real"]
Side = Literal["ours", "theirs"]
SIDES: tuple[Side, Side] = ("ours", "theirs")


class Workbench:
    """Servers by side, model and batch size.  `close` ends them all.

    `scratch` takes a copy of the tiny model that never ends its text; `rounds` is how often
    the arms of a comparison take turns.
    """

    def __init__(self, tiny: str, real: str, scratch: Path, rounds: int, *, quick: bool) -> None:
        self.rounds = rounds
        self.quick = quick
        self._names = {"tiny": tiny, "real": real}
        self._scratch = scratch
        self._folders: dict[Size, Path] = {}
        self._servers: dict[tuple[Side, Size, int], ServerProcess] = {}
        self._words: dict[tuple[Size, bool, int], int] = {}
        self._seed = 0

    def folder(self, size: Size) -> Path:
        """Return the model's folder.  Raises ModelNotFound."""
        if size not in self._folders:
            found = find_model(self._names[size])
            self._folders[size] = (
                endless_copy(found, self._scratch / f"{found.name}-endless")
                if size == "tiny"
                else found
            )
        return self._folders[size]

    def shape(self, size: Size, prompt_tokens: int, max_tokens: int) -> RequestShape:
        """Return greedy chat requests whose answers do not end early."""
        shape = RequestShape(prompt_tokens=prompt_tokens, max_tokens=max_tokens, temperature=0.0)
        if size == "tiny":
            return shape
        return RequestShape(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,
            end_ids=end_ids(self.folder(size)),
        )

    async def server(self, side: Side, size: Size, batch: int = 8) -> ServerProcess:
        """Return a running server.  `batch` is ours alone; theirs takes 32.

        Raises DidNotStart.
        """
        key = (side, size, batch if side == "ours" else 0)
        server = self._servers.get(key)
        if server is None or not server.alive:
            server = self.fresh(side, size, batch)
            self._servers[key] = server
            await server.ready()
            await self._warm(server, size)
        return server

    def fresh(self, side: Side, size: Size, batch: int = 8) -> ServerProcess:
        """Start a server that the caller stops, and do not wait for it."""
        folder = str(self.folder(size))
        return (
            start_ours(folder, ["--batch", str(batch)]) if side == "ours" else start_mlx_lm(folder)
        )

    def forget(self, server: ServerProcess) -> None:
        """Stop a server, so that the next to ask gets a new one."""
        server.stop()
        self._servers = {key: s for key, s in self._servers.items() if s is not server}

    async def prompts(self, server: ServerProcess, size: Size, shape: RequestShape) -> Prompts:
        """Return a source of prompts of the shape's length that nobody has seen."""
        key = (size, shape.chat, shape.prompt_tokens)
        if key not in self._words:
            async with Client(server.endpoint) as client:
                self._words[key] = await words_for(client, shape, shape.prompt_tokens)
        self._seed += 1
        return Prompts(self._words[key], self._seed)

    async def load(
        self,
        side: Side,
        size: Size,
        shape: RequestShape,
        num_clients: int,
        num_requests: int,
        batch: int = 8,
    ) -> LoadRun:
        """Run one load on one side."""
        server = await self.server(side, size, batch)
        prompts = await self.prompts(server, size, shape)
        return await run_load(
            server.endpoint,
            shape,
            prompts,
            num_clients=num_clients,
            num_requests=num_requests,
            pid=server.pid,
        )

    def close(self) -> None:
        for server in self._servers.values():
            server.stop()
        self._servers.clear()

    async def _warm(self, server: ServerProcess, size: Size) -> None:
        """Pay for what a first request of each batch size costs once."""
        shape = self.shape(size, 48, 8 if size == "real" else 64)
        prompts = await self.prompts(server, size, shape)
        for num_clients in (1, 8):
            await run_load(server.endpoint, shape, prompts, num_clients=num_clients, num_requests=1)
