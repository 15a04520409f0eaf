"""Fixtures that several tests share: small data, a tiny model, one simulated Ray cluster."""

import csv
import json
import os
import random
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: cores are shared

from cluster import ingress, local, session
from jobs.spec.quantities import parse_accelerators
from jobs.spec.serve import ServeSpec
from jobs.training.model import location as model_location
from tests import s3
from tests.builders import MINILM

GOOD = ("superb", "moving", "delightful", "fresh", "brilliant")
BAD = ("dull", "awful", "tedious", "clumsy", "lifeless")
SIMULATED = ("A100-80GB:1", "L40S:2", "T4:4")

# Ray's own code warns about itself, and leaves sockets to the garbage collector when it stops
RAY_WARNINGS = (
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
    "ignore::UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Ray's own warnings pass in tests that use Ray."""
    for item in items:
        if item.get_closest_marker("ray"):
            for warning in RAY_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse test modules that import Ray, which reads how to reach a cluster when imported."""
    if "ray" in sys.modules and any(item.get_closest_marker("ray") for item in session.items):
        raise pytest.UsageError(
            "a test module imports ray, itself or with a module of ours, so that no test can join"
            " a cluster; import it inside the tests that use it"
        )


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.csv (160 rows) and eval.csv (50), made of words that decide the label."""
    folder = tmp_path_factory.mktemp("reviews")
    draw = random.Random(3)
    for name, count in (("train", 160), ("eval", 50)):
        rows = [("text", "label")]
        for index in range(count):
            words, label = ((GOOD, "positive"), (BAD, "negative"))[index % 2]
            rows.append((f"a {draw.choice(words)} film {'indeed ' * draw.randrange(5)}", label))
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerows(rows)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT of two layers with random weights and the real tokenizer of MiniLM."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("tiny-model")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertModel(config).save_pretrained(folder)
    location = model_location.locate(MINILM)
    transformers.AutoTokenizer.from_pretrained(location).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama of two layers with random weights and a tokenizer made from a few sentences."""
    import tokenizers
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("tiny-llama")
    words = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    words.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator([" ".join(GOOD + BAD) + " What is the colour of a film?"], trainer)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.jsonl (96 rows) and eval.jsonl (24): prompt, response and messages."""
    folder = tmp_path_factory.mktemp("questions")
    draw = random.Random(5)
    for name, count in (("train", 96), ("eval", 24)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as handle:
            for _ in range(count):
                word = draw.choice(GOOD + BAD)
                prompt = f"Is a {word} film {'very ' * draw.randrange(4)}good?"
                response = " Yes, it is." if word in GOOD else " No, it is not."
                messages = [
                    {"role": "user", "content": prompt},
                    {"role": "assistant", "content": response},
                ]
                row = {"prompt": prompt, "response": response, "messages": messages}
                handle.write(json.dumps(row) + "\n")
    return folder


@pytest.fixture(scope="session")
def ray_cluster(
    tmp_path_factory: pytest.TempPathFactory, s3_url: str
) -> Iterator[session.Connection]:
    """One local cluster with simulated accelerators for all tests that need Ray.

    Its workers know the S3 server, its Ray Serve answers gRPC too, and replicas that leave are
    waited for no longer than HAProxy takes to hear of it.
    """
    os.environ["WINNOW_HOME"] = str(tmp_path_factory.mktemp("home"))
    os.environ.update({**s3.KEYS, "AWS_ENDPOINT_URL_S3": s3_url})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingress, "DRAIN_S", "3")
        patch.setattr(local, "START_TIMEOUT_S", 300.0)
        patch.setattr(local, "IDLE_WORKER_S", 900)  # starting one for each question takes 3 s
        local.start([parse_accelerators(name) for name in SIMULATED])
    try:
        with session.connect(start=False) as connection:
            start_serving(connection)
            yield connection
    finally:
        local.stop()


@pytest.fixture(autouse=True)
def only_own_endpoints(request: pytest.FixtureRequest) -> Iterator[None]:
    """Removes what a test has deployed to the shared cluster, whether it passes or fails."""
    if "ray_cluster" not in request.fixturenames:
        yield
        return
    request.getfixturevalue("ray_cluster")
    from serve.deploy import endpoints

    before = endpoints.states()
    yield
    for model in endpoints.states().keys() - before.keys():
        endpoints.remove(model)


def start_serving(connection: session.Connection) -> None:
    """Ray Serve keeps the options that it begins with."""
    from serve.deploy import deployment

    deployment.start(ServeSpec(route="/any", grpc=True), connection.serve_port)


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real S3 server with a bucket."""
    with s3.server(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture
def s3_environment(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its URL, which boto3 finds with the keys to it in the environment."""
    for name, value in {**s3.KEYS, "AWS_ENDPOINT_URL_S3": s3_url}.items():
        monkeypatch.setenv(name, value)
    return s3_url


@pytest.fixture
def bucket(s3_environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty prefix, with a cache of its own on this machine."""
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    return f"s3://{s3.BUCKET}/{secrets.token_hex(6)}"
