"""Tiny models with real random weights: small enough for a CPU, different enough that every token's context shows.

Weights drawn with a deviation of 0.25 (not the usual 0.02) make greedy output depend on the whole prompt, so that a
block with other bytes gives other tokens. Each kind exercises another layout of the cache:

    llama   full attention, 3 layers, 2 KV heads of 32
    gemma   sliding window and full attention in turn: two cache groups
    mla     one joint latent per token, the same on every tensor-parallel rank
"""

from __future__ import annotations

import json
import random
from pathlib import Path

#: Tokens 0 to 3 are special.
VOCABULARY = 512
FIRST_PLAIN_TOKEN = 4
WEIGHT_DEVIATION = 0.25
MAX_POSITIONS = 4096

_COMMON = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MAX_POSITIONS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": WEIGHT_DEVIATION,
}


def make_model(kind: str, folder: Path, seed: int = 1234) -> Path:
    """Write the model `kind` into `folder`, unless it is there, and return the folder."""
    if (folder / "complete").exists():
        return folder
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    model = _MODELS[kind](transformers).to(torch.float32)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    (folder / "complete").touch()
    return folder


def _llama(transformers):
    config = transformers.LlamaConfig(
        **_COMMON, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _gemma(transformers):
    config = transformers.Gemma3TextConfig(
        **_COMMON, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32, sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2, query_pre_attn_scalar=32,
    )  # fmt: skip
    return transformers.Gemma3ForCausalLM(config)


def _mla(transformers):
    config = transformers.DeepseekV2Config(
        **_COMMON, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None,
        kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, head_dim=64,
        first_k_dense_replace=3, n_routed_experts=2, n_shared_experts=1, num_experts_per_tok=1,
        moe_intermediate_size=64,
    )  # fmt: skip
    return transformers.DeepseekV2ForCausalLM(config)


_MODELS = {"llama": _llama, "gemma": _gemma, "mla": _mla}


def _write_tokenizer(folder: Path) -> None:
    """Byte-level BPE, trained on made-up words until it has exactly the model's vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(3, 8))) for _ in range(400)]
    lines = (" ".join(rng.choices(words, k=25)) for _ in range(300))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(lines, trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "unk_token": "<unk>", "model_max_length": MAX_POSITIONS, "chat_template": template,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))


def prompt(seed: int, tokens: int) -> list[int]:
    """Random plain tokens; of one seed, a shorter prompt is the beginning of a longer one."""
    rng = random.Random(seed)
    return [rng.randrange(FIRST_PLAIN_TOKEN, VOCABULARY) for _ in range(tokens)]
