"""What the engine is measured against: the shortest loop over mlx-lm, and its BatchGenerator.

mlx-lm has no types, so it is reached by name.  All of this runs on the calling thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxbun.adapters.bench import random_models
from mlxbun.adapters.bench.engine_steps import WARM_STEPS, Mark, StepCost, cost, now
from mlxbun.domain.sampling import SamplingParams


def open_baselines(model: str) -> Baselines:
    """Load a folder as mlx-lm does, or make a random model, and return the loops over it."""
    importlib.import_module("mlx_lm.generate")  # first, so that mlx_lm is imported whole
    if random_models.is_random(model):
        return Baselines(random_models.make(random_models.shape_of(model)))
    utils: Any = importlib.import_module("mlx_lm.utils")
    return Baselines(utils.load_model(Path(model))[0])


class Baselines:
    """The two loops over a model of mlx-lm."""

    def __init__(self, model: Any) -> None:
        self._mx: Any = importlib.import_module("mlx.core")
        self._generate: Any = importlib.import_module("mlx_lm.generate")
        self._cache: Any = importlib.import_module("mlx_lm.models.cache")
        self._sampling: Any = importlib.import_module("mlx_lm.sample_utils")
        self._model = model
        self._mx.eval(model.parameters())

    def hand_loop(self, num_rows: int, prompt_ids: Sequence[int], num_steps: int) -> StepCost:
        """Measure forward and argmax, one step ahead, with no sampler, stop or bookkeeping."""
        mx, model = self._mx, self._model
        caches = [c.merge([c] * num_rows) for c in self._cache.make_prompt_cache(model)]
        logits = model(mx.array([list(prompt_ids)] * num_rows), cache=caches)
        tokens = mx.argmax(logits[:, -1], axis=-1)
        mx.async_eval(tokens)
        marks: list[Mark] = []
        for _ in range(num_steps + 2 * WARM_STEPS):
            later = mx.argmax(model(tokens[:, None], cache=caches)[:, -1], axis=-1)
            mx.async_eval(later)
            tokens.tolist()
            tokens = later
            marks.append(now())
        mx.eval(tokens)
        return cost(marks, num_rows)

    def batch_generator(
        self, params: Sequence[SamplingParams], prompt_ids: Sequence[int], num_steps: int
    ) -> StepCost:
        """Measure BatchGenerator as mlx_lm.server drives it: a sampler for each row.

        Rows that are all greedy share one sampler, as they do there.
        """
        num_rows = len(params)
        shared = self._sampling.make_sampler(temp=0.0)
        generator = self._generate.BatchGenerator(
            self._model,
            max_tokens=num_steps + 2 * WARM_STEPS + num_rows,
            completion_batch_size=num_rows,
            prefill_batch_size=num_rows,
        )
        generator.insert(
            [list(prompt_ids)] * num_rows,
            samplers=[shared if p.greedy else self._sampler(p) for p in params],
            logits_processors=[self._processors(p) for p in params],
        )
        marks: list[Mark] = []
        while responses := generator.next_generated():
            if len(responses) == num_rows:
                marks.append(now())
        generator.close()
        return cost(marks, num_rows)

    def _sampler(self, params: SamplingParams) -> Any:
        return self._sampling.make_sampler(
            temp=params.temperature,
            top_p=params.top_p if params.top_p < 1.0 else 0.0,
            top_k=params.top_k,
            min_p=params.min_p,
        )

    def _processors(self, params: SamplingParams) -> Any:
        asked = params.repetition_penalty if params.repetition_penalty != 1.0 else None
        return self._sampling.make_logits_processors(
            repetition_penalty=asked,
            presence_penalty=params.presence_penalty or None,
            frequency_penalty=params.frequency_penalty or None,
        )
