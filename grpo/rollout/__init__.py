"""This room has the samplers, and the ways in which a round is filled.

seeds                  one seed per (prompt, sample, policy version)
stopping               which tokens end a completion
engine_arguments       vLLM's settings, for an engine and for a server
vllm_sampler           vLLM's engine in this process
pooling                prompts of ranks that share an engine
model_classes          transformers' classes, kept from what vLLM makes of them for itself
server_sampler         asks vLLM servers for completions
servers, replica       how servers are started, and one of them
fleet                  all servers of a run: who gets weights, who is lost, who comes back
dispatch               hands requests out to the servers
server_key             a door before a server, in its process
transformers_sampler   where there is no vLLM
collect                prompts → scored groups; DAPO's dynamic sampling
source                 where a round's groups come from: asked when they are needed, or before
ahead                  the next round while this one is learned from
checked                a sampler whose answers are looked at before they are used
"""
