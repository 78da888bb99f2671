"""Samplers, and how a round is filled.

seeds                  one seed per (prompt, sample, policy version)
stopping               which tokens end a completion
engine_arguments       vLLM's settings, for an engine and for a server
vllm_sampler           vLLM's engine in this process
server_sampler         vLLM servers: serve (a process), replica (requests to it), dispatch (over several)
transformers_sampler   where there is no vLLM
collect                prompts → scored groups; DAPO's dynamic sampling
ahead                  the next round while this one is learned from
"""
