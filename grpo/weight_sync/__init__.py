"""This room is the only bridge between learner and sampler.

refresh         sends all weights to a sampler, in buckets, and compares them afterwards
checksum        checksums that both sides compute after a transfer and compare
channel         how a bucket travels to another process: where the ends meet, and NCCL that survives a lost member
shared_memory   how a bucket reaches an engine on the same device
server_link     the sending side of vLLM's weight-transfer protocol, with one server
vllm_receiver   the receiving end inside vLLM's worker
vllm_adapters   LoRA's adapters as vLLM's own, beside the frozen weights
engine_weights  where vLLM keeps each weight, weights that no learner sends, and the order of experts
"""
