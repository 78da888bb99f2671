"""This package runs episodes: conversations of several turns, in which a model uses tools or acts in an environment.

One episode is one completion of its group, with one advantage. Its tokens are those that the model sampled, and between
them those that tools and environment wrote, which are read and never learned from.

template    messages ↔ tokens: cuts out what stands between two turns, so that nothing is encoded again
proof       shows before a run that a template allows that; comparison compares conversations as texts
made_up_calls  the messages with which a template is proven
recorder    the exact tokens of one episode, and its branches where a history was rewritten
forms       what an episode may be: functions as tools, an environment class, a function, a program
tool_schemas  describes functions and methods as tools
messages    brings messages into the form that chat templates read
gateway     answers programs that speak OpenAI's chat interface
ready_tools  tools that come with grpo
verifiers_bridge  plays environments of verifiers, in a Python of their own
process     the program in which episodes run, each in a process of its own
processes   starts it, speaks with the episodes, kills those that take too long
sampler     samples episodes on top of any engine
"""
