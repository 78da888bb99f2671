"""No key and no password may stand in a configuration, which a run writes down."""

from dataclasses import asdict

import pytest

from grpo.config import TrainConfig, UserError
from grpo.config.credentials import _texts, refuse_credentials
from grpo.config.hydra import compose_config

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (f"task.reward.parts=[{{name: http, server: {{url: 'http://a/score?key={SECRET}'}}}}]", "server.key_variable"),
        (f"task.reward.parts=[{{name: http, server: {{url: 'http://a/s?v=2&api_key={SECRET}'}}}}]", "write {key}"),
        (f"task.reward.parts=[{{name: http, server: {{url: 'a/score?code={SECRET}'}}}}]", "task.reward.parts.0.server"),
        (f"task.reward.parts=[{{name: judge, server: {{url: 'http://me:{SECRET}@a/v1'}}}}]", "server.url holds a key"),
        (
            f"task.reward.parts=[{{name: judge, server: {{url: 'http://a', options: {{api_key: {SECRET}}}}}}}]",
            "options",
        ),
        (
            f"+task.reward.by_source={{a: {{parts: [{{name: http, server: {{url: 'http://a?token={SECRET}'}}}}]}}}}",
            "a.parts",
        ),
        (f"tracking.mlflow='https://me:{SECRET}@mlflow.example'", "export MLFLOW_TRACKING_USERNAME"),
        (f"tracking.mlflow='postgresql://me:{SECRET}@db/mlflow'", "PGPASSWORD"),
        (f"rollout.servers.urls=['http://me:{SECRET}@a:8000']", "rollout.servers.urls.0 holds a key"),
        (f"tracking.mlflow='https://{SECRET}@mlflow.example'", "export MLFLOW_TRACKING_USERNAME"),
        (f"task.reward.parts=[{{name: http, server: {{url: 'http://{SECRET}@a/s'}}}}]", "server.key_variable"),
        (f"task.reward.parts=[{{name: http, server: {{url: 'http://a/s?k={SECRET}-long'}}}}]", "write {key}"),
        (
            f"task.reward.parts=[{{name: judge, server: {{url: 'http://a', options: {{x: 'Bearer sk-{SECRET}'}}}}}}]",
            "options.x holds a key",
        ),
        (f"+rollout.engine_args.hf_token={SECRET}", "export HF_TOKEN"),
        (f"+task.data.options.password={SECRET}", "give it by an environment variable"),
        (f"task.data.path='https://a.example/p.jsonl?X-Amz-Signature={SECRET}'", "download the file, and name it here"),
    ],
)
def test_a_key_or_password_is_refused_without_being_repeated(word, expected):
    with pytest.raises(UserError) as refused:
        compose_config([word])
    assert expected in str(refused.value) and SECRET not in str(refused.value)


def test_a_word_that_cannot_be_read_is_repeated_without_its_key():
    with pytest.raises(UserError) as refused:
        compose_config([f"task.data.path=https://a.example/p.jsonl?X-Amz-Signature={SECRET}&y=2"])
    assert str(refused.value).startswith("cannot read 'task.data.path=https://a.example/p.jsonl?X-Amz-Signature=…&y=2'")
    assert SECRET not in str(refused.value)


def test_a_key_of_the_environment_does_not_slip_in(monkeypatch):
    monkeypatch.setenv("SCORE_KEY", SECRET)
    url = "http://a/score?key=${oc.env:SCORE_KEY}"
    with pytest.raises(UserError, match="write {key} in its place"):
        compose_config([f"task.reward.parts=[{{name: http, server: {{url: '{url}'}}}}]"])


def test_values_that_are_no_secrets_pass():
    config = TrainConfig()
    config.model.config = {"pad_token": "<pad>", "rope_scaling": {"key": 4}}
    config.tracking.mlflow = "http://127.0.0.1:5000"
    config.task.data.options = {"key": "answer", "signature": "f(x)", "tokens": 3}
    config.task.prompt.template = "What is the key? {question}"
    config.task.data.path = "me@host:problems.jsonl"
    refuse_credentials(config)
    config.tracking.mlflow = "postgresql://me@db/x?k=5"
    refuse_credentials(config)
    for name in ("hf_transformers_baseline", "sk-learn-comparison-run", "ghp_like_name_of_a_group"):
        config.output_dir = f"runs/{name}"
        refuse_credentials(config)
    compose_config(["task.reward.parts=[{name: http, server: {url: 'http://a/s?v=2&key={key}', key_variable: K}}]"])
    assert ("model.config.pad_token", "<pad>") in list(_texts(asdict(config)))
