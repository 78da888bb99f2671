"""Samplers, and how a round is filled.

seeds                  one seed per (prompt, sample, policy version)
stopping               which tokens end a completion
vllm_sampler           vLLM's engine in this process
transformers_sampler   where there is no vLLM
collect                prompts → scored groups; DAPO's dynamic sampling
"""
