"""This room is the only bridge between learner and sampler.

checksum        what both sides compute after a transfer
engine_weights  where vLLM keeps each weight, those that nobody sends, and experts that it keeps in an order of its own
refresh         all weights to a sampler, in buckets, compared afterwards
adapters        LoRA's adapters, added to the frozen weights where they arrive
channel         how a bucket travels to another process: one broadcast
meeting         where the ends of a channel find each other
server_link     the sending side of vLLM's weight-transfer protocol, with one server
vllm_receiver   the receiving end inside vLLM's worker
"""
