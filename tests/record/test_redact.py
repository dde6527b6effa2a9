"""trainer/record/redact.py: secrets go, everything that only looks like one stays."""

import time

import pytest

from trainer.record.redact import redact, redact_all, redact_words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pass@host/x", "https://host/x"),
        ("cannot reach http://me:p%40ss@proxy:3128, and git+ssh://key@host", "cannot reach http://proxy:3128, and git+ssh://host"),
        ("https://host/a@b", "https://host/a@b"),
        ("https://host/x?a=1&token=abc&b=2", "https://host/x?a=1&token=***&b=2"),
        ("https://host/?api_key=abc#x", "https://host/?api_key=***#x"),
        ("https://s3/x?X-Amz-Signature=abcdef", "https://s3/x?X-Amz-Signature=***"),
        ("HF said no to hf_AbCdEfGhIjKlMnOpQrSt.", "HF said no to hf_***."),
        ("hf_hub and sk-learn are no tokens", "hf_hub and sk-learn are no tokens"),
        ("a@b.c mails; step 3 of 5", "a@b.c mails; step 3 of 5"),
        ("", ""),
    ],
)
def test_texts(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_flags_and_variables_that_are_secrets_by_name() -> None:
    words = ["HF_TOKEN=abc", "train", "--api-key", "abc", "--hub.password=abc", "--token", "--watch.port", "1", "--secret", "x"]
    shown = ["HF_TOKEN=***", "train", "--api-key", "***", "--hub.password=***", "--token", "--watch.port", "1", "--secret", "***"]
    assert redact_words(words) == shown


def test_our_own_flags_stay_as_they_are() -> None:
    words = [
        "python",
        "-m",
        "trainer",
        "train",
        "--target",
        "Qwen/Qwen3-8B",
        "--batches.token-budget",
        "8192",
        "--data",
        "/data/a=b",
    ]
    words += ["--drafter.mask-token-id", "5", "--watch.token-file", "/secrets/token", "--dataset.template-args", "think", "false"]
    assert redact_words(words) == words


def test_a_whole_status() -> None:
    status = {
        "run": {"id": "a", "command": ["train", "--token", "abc"]},
        "last_error": "http://u:p@h",
        "warnings": ("ftp://u:p@h", "fine"),
        "step": 3,
        "loss": None,
    }
    assert redact_all(status) == {
        "run": {"id": "a", "command": ["train", "--token", "***"]},
        "last_error": "http://h",
        "warnings": ["ftp://h", "fine"],
        "step": 3,
        "loss": None,
    }
    assert redact_all({"command": None}) == {"command": None}


def test_long_texts_do_not_take_long() -> None:
    began = time.process_time()
    for nasty in ("a" * 100_000 + "://", "https://" * 20_000, "?token" * 20_000, "http://" + ":" * 100_000, "?a-" * 40_000 + "://"):
        redact(nasty)
    assert time.process_time() - began < 2.0
