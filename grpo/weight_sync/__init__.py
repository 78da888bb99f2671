"""The only bridge between learner and sampler.

checksum        what both sides compute after a transfer
in_process      learner and sampler in one process: tensors by reference
vllm_receiver   the receiving end inside vLLM's worker
"""
