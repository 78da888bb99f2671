"""These episodes speak through OpenAI's client or bring tools of their own. Their imports, which take a while, are
left out of acts.py."""

from contextlib import suppress

from openai import APITimeoutError, AsyncOpenAI, BadRequestError

from tests.episodes.acts import add


async def by_address(chat, problem):
    """Asks twice through OpenAI's client, the second time as a stream."""
    client = AsyncOpenAI()
    messages = [dict(message) for message in problem.messages]
    first = await client.chat.completions.create(model="any", messages=messages, temperature=0.3)
    messages += [first.choices[0].message.to_dict(), {"role": "user", "content": [{"type": "text", "text": "More."}]}]
    pieces = await client.chat.completions.create(
        model="any", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in pieces]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return {
        "reward": 1.0,
        "length": len("".join(choice.delta.content or "" for choice in choices)),
        "ended": choices[-1].finish_reason in ("stop", "length"),
        "used": chunks[-1].usage.completion_tokens,
    }


async def asks_for_less(chat, problem):
    """Cuts a turn off, and goes on."""
    client = AsyncOpenAI()
    messages = [dict(message) for message in problem.messages]
    first = await client.chat.completions.create(model="any", messages=messages, max_tokens=3)
    messages += [first.choices[0].message, {"role": "user", "content": "More."}]
    await client.chat.completions.create(model="any", messages=messages, max_tokens=3)
    return float(first.usage.completion_tokens)


async def asks_oddly(chat, problem):
    """Asks for what no turn has, and with a request that is too large. Then it asks as it should."""
    client, messages, refused = AsyncOpenAI(), [dict(message) for message in problem.messages], 0
    for odd in ({"top_logprobs": 5}, {"max_tokens": True}, {"extra_body": {"padding": "x" * 2**26}}):
        try:
            await client.chat.completions.create(model="any", messages=messages, **odd)
        except BadRequestError as error:
            refused += error.body["code"] == "invalid_request_error"
    await client.chat.completions.create(model="any", messages=messages)
    return float(refused)


async def wants_a_form(chat, problem):
    messages = list(problem.messages)
    await AsyncOpenAI().chat.completions.create(model="any", messages=messages, extra_body={"guided_regex": "a+"})
    return 1.0


async def asks_for_what_nobody_knows(chat, problem):
    await AsyncOpenAI().chat.completions.create(model="any", messages=list(problem.messages), extra_body={"depth": 3})


async def describes_a_tool_oddly(chat, problem):
    function = {"name": "f", "parameters": {"properties": ["x"]}}
    await chat(list(problem.messages), tools=[{"type": "function", "function": function}])


async def brings_tools(chat, problem):
    await chat(list(problem.messages), tools=[add])
    return 1.0


async def gives_up_turns(chat, problem):
    """Waits for five turns no longer than for a moment, and then for one."""
    client = AsyncOpenAI(max_retries=0)
    messages = list(problem.messages)
    for _ in range(5):
        with suppress(APITimeoutError):
            await client.with_options(timeout=0.002).chat.completions.create(model="any", messages=messages)
            return 1.0
    await client.chat.completions.create(model="any", messages=messages)
    return 1.0


async def wants_two(chat, problem):
    await AsyncOpenAI().chat.completions.create(model="any", messages=list(problem.messages), n=2)
    return 1.0


async def answers_otherwise(chat, problem):
    await AsyncOpenAI().responses.create(model="any", input="What?")


async def says_it_packed(chat, problem):
    messages = [{"role": "user", "content": "What?"}]
    packed = {"Content-Encoding": "gzip"}
    await AsyncOpenAI(max_retries=0).chat.completions.create(model="any", messages=messages, extra_headers=packed)
