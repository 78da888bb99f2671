"""This program is an agent that knows nothing of grpo: it speaks OpenAI's chat interface by hand."""

import json
import os
import sys
import urllib.request


def chat(messages):
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


problem = json.loads(sys.stdin.readline())
messages = problem["messages"]
for _ in range(int(sys.argv[1])):
    messages += [chat(messages), {"role": "user", "content": f"Go on, not {problem['row']['answer']}."}]
print("It is over.")
print(json.dumps({"reward": 0.5, "messages": len(messages)}))
