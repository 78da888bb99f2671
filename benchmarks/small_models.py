"""This module has small configurations of many architectures, with their special features on, and a tokenizer for them.

Tests and benchmarks use both."""

import string

from tokenizers import Tokenizer, decoders, models
from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerFast

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
GPT2 = {"n_layer": 3, "n_head": 4, "n_embd": 64, "n_positions": 256}
SLIDING, FULL = "sliding_attention", "full_attention"
DELTA = {
    "layer_types": ["linear_attention", FULL, "linear_attention", FULL],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

# Model type and what it has beside SMALL. How it is computed: in trees, one completion a row, or not at all.
TREES, ALONE, REFUSED = "trees", "alone", "refused"
ARCHITECTURES: dict[str, tuple[str, dict, str]] = {
    "Llama": ("llama", {}, TREES),
    "Llama 3 positions": (
        "llama",
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
        TREES,
    ),
    "Llama YaRN": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                             "original_max_position_embeddings": 64}},
        TREES,
    ),
    "Llama, biases, dropout": ("llama", {"attention_bias": True, "mlp_bias": True, "attention_dropout": 0.1}, TREES),
    "Qwen2": ("qwen2", {}, TREES),
    "Qwen2, windows on": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, TREES),
    "Qwen3": ("qwen3", {}, TREES),
    "Qwen3.5 (dense text)": ("qwen3_5_text", DELTA, ALONE),
    "Qwen3-Next": ("qwen3_next", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 48}, ALONE),
    "Qwen3-MoE": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}, TREES),
    "Mixtral, window": ("mixtral", {**EXPERTS, "sliding_window": 8}, TREES),
    "Mistral, window": ("mistral", {"sliding_window": 8}, TREES),
    "Ministral": ("ministral", {"sliding_window": 8, "layer_types": [SLIDING, FULL] * 2}, TREES),
    "Gemma 2": ("gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0,
                           "final_logit_softcapping": 3.0}, TREES),
    "Gemma 3": ("gemma3_text", {"sliding_window": 8, "query_pre_attn_scalar": 16}, TREES),
    "Phi-3, window": ("phi3", {"sliding_window": 8, "resid_pdrop": 0.1, "embd_pdrop": 0.1}, TREES),
    "OLMo 2": ("olmo2", {}, TREES),
    "Olmo 3": ("olmo3", {"sliding_window": 8}, TREES),
    "SmolLM3": ("smollm3", {"no_rope_layer_interval": 2}, TREES),
    "Granite": ("granite", {"logits_scaling": 8.0, "residual_multiplier": 0.3, "embedding_multiplier": 6.0}, TREES),
    "GLM-4": ("glm4", {"partial_rotary_factor": 0.5}, TREES),
    "gpt-oss": ("gpt_oss", {**EXPERTS, "sliding_window": 8, "layer_types": [SLIDING, FULL] * 2}, TREES),
    "LFM2": ("lfm2", {"layer_types": ["conv", FULL, "conv", FULL]}, ALONE),
    "GPT-2": ("gpt2", GPT2, TREES),
    "Cohere 2": ("cohere2", {"sliding_window": 8, "logit_scale": 0.25}, TREES),
    "Exaone 4": ("exaone4", {"sliding_window": 8, "sliding_window_pattern": 2}, TREES),
    "Phi (output bias)": ("phi", {}, TREES),
    "Starcoder 2": ("starcoder2", {"sliding_window": 8, "residual_dropout": 0.1}, TREES),
    "Bloom (ALiBi)": ("bloom", {"n_layer": 2, "n_head": 4, "hidden_size": 64}, ALONE),
    "Mamba 2": ("mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2}, ALONE),
    "MPT (ALiBi)": ("mpt", {"n_layers": 2, "n_heads": 4, "d_model": 64}, ALONE),
}  # fmt: skip

# DeepSeek's latent attention, in the only width that vLLM's CPU build takes, and its kind of experts.
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
          "qk_rope_head_dim": 64, "qk_head_dim": 192, "v_head_dim": 128, "head_dim": 64}  # fmt: skip
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1,
          "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}  # fmt: skip

# Models in which every token chooses the positions that it sees.
_LATENT = {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
           "qk_rope_head_dim": 8, "v_head_dim": 16, "head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 48, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
           "index_topk": 64, "index_n_heads": 2, "index_head_dim": 16}  # fmt: skip
SPARSE = dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _LATENT)


def config_of(name: str) -> PretrainedConfig:
    model_type, special, _ = ARCHITECTURES[name]
    return AutoConfig.for_model(model_type, **{**SMALL, **special})


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Makes a tokenizer with one token for each character, ids 3 to 63. Token 1 begins a sequence and token 2 ends
    it."""
    characters = string.digits + string.ascii_lowercase + " .,:;+-*/=?!()[]<>_#&%$@'\"^"
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {c: 3 + i for i, c in enumerate(characters[:61])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<pad>"))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
