"""These tests hold that after a refresh vLLM's models on a CPU are the same as after loading the same weights."""

import pytest

from tests import warm

# Latent attention, which decodes by matrices that it computes from a weight, and experts that only one by one are
# known; sinks; experts that may be known in one tensor; queries, keys and values head by head, of as many heads and of
# fewer; an activation with weights; a router in float32.
TYPES = dict.fromkeys(("deepseek_v3", "gpt_oss", "qwen3_moe", "bloom", "falcon", "apertus", "glm4_moe"), "fine")
# A deep sleep would lose the slopes of ALiBi.
TYPES["bloom"] = "stays at level 1"


@pytest.mark.slow
def test_a_refresh_leaves_an_engine_as_its_own_loading_does():
    done = warm.run(["-m", "benchmarks.refreshes", "bfloat16", *TYPES], timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert {row[0].removeprefix("| "): row[1] for row in rows} == TYPES, rows
