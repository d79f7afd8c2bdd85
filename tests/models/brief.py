"""A tiny model that says one sentence and ends, for clients that insist on an end.

    python tests/models/brief.py --out DIR

It attends to its prompt as any model does, over a window of 131,072 tokens, and makes nothing of
it: each token leads to the next one of the sentence, the last to the end, any other to the first.
A grammar that forbids the sentence gets noise, and an end as soon as it allows one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from models import tiny

NAME = "tiny-brief"
SENTENCE = "The others were still at sea."
SURE = 12.0  # logits by which the next token leads
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": tiny.VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}


def make(folder: Path) -> Path:
    """Make the model at `folder`, which appears whole or not at all; keep it if it is there."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        config = dict(CONFIG)
        tiny.write_tokenizer(aside, config)
        _write_weights(aside, config)
        aside.chmod(0o755)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _write_weights(folder: Path, config: dict[str, Any]) -> None:
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = tiny.TOKEN_IDS["<|im_end|>"]
    chain = [*tokenizer.encode(SENTENCE).ids, end]
    assert len(set(chain)) == len(chain), "a token has one successor"
    # A grammar may have these spelled letter by letter.
    ends = [tokenizer.token_to_id("}"), tokenizer.token_to_id(">"), tiny.TOKEN_IDS["</tool_call>"]]
    quote = tokenizer.token_to_id('"')

    # Tokens that lead somewhere have a direction of their own, the others a random one; all
    # share the last dimension.
    rng = np.random.Generator(np.random.PCG64(1))
    size, hidden = config["vocab_size"], config["hidden_size"]
    own = [*chain[:-1], *ends]
    embed = np.zeros((size, hidden), "float32")
    embed[:, len(own) : -1] = rng.standard_normal((size, hidden - len(own) - 1))
    embed[own] = 0
    embed[own, range(len(own))] = 1
    embed /= np.linalg.norm(embed, axis=1, keepdims=True)
    embed[:, -1] = 1

    head = rng.standard_normal((size, hidden)).astype("float32") / hidden
    head[chain[0], -1] += SURE
    for i, following in enumerate(chain[1:]):
        head[following, i] += 2 * SURE
    head[end, len(chain) - 1 : len(own)] += 2 * SURE
    head[quote, len(chain) - 2] += SURE  # where the end is forbidden, as in a string

    tiny.write_weights(
        folder,
        config,
        seed=0,
        fixed={
            "model.embed_tokens.weight": embed,
            "lm_head.weight": head,
            "model.layers.0.self_attn.o_proj.weight": np.zeros((hidden, 16), "float32"),
            "model.layers.0.mlp.down_proj.weight": np.zeros((hidden, 64), "float32"),
            "model.norm.weight": np.full(hidden, 2**0.5 / 8, "float32"),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    sys.stdout.write(f"{make(parser.parse_args().out / NAME)}\n")


if __name__ == "__main__":
    main()
