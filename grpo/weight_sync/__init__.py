"""This room is the only bridge between learner and sampler.

refresh         sends all weights to a sampler, in buckets, and compares them afterwards
checksum        checksums that both sides compute after a transfer and compare
adapters        LoRA's adapters, added to the frozen weights where they arrive
channel, nccl   how a bucket travels to another process; NCCL that survives a lost member
meeting         where the ends of a channel find each other
server_link     the sending side of vLLM's weight-transfer protocol, with one server
vllm_receiver   the receiving end inside vLLM's worker
engine_weights  where vLLM keeps each weight, weights that no learner sends, and the order of experts
"""
