"""The overfit proof: conversations that are the target's own greedy answers are learnt by heart, exported and decoded again.

Everything goes through the commands that people use. What is learnt right and served right keeps nearly a block a round.
"""

import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import datasets
import torch

from tests.support.zlab import decode, load_reference
from trainer.__main__ import main
from trainer.data.chat_template import Chat
from trainer.decoding.generate import stop_token_ids
from trainer.decoding.speculative import Decoded, SpeculativeDecoder
from trainer.formats.load import load_trained
from trainer.target.load import Target

Messages = list[dict[str, str]]


def command(*words: object) -> str:
    """What a command of ours prints; it has to end well."""
    with redirect_stdout(StringIO()) as told:
        code = main([str(word) for word in words])
    assert code == 0, f"{words[0]} ended with {code}"
    return told.getvalue()


@dataclass(frozen=True)
class Exam:
    """Prompts with the answers that were learnt, and how they are asked again."""

    target: str
    conversations: list[Messages]
    max_new_tokens: int
    precision: str = "float32"

    def model(self) -> Any:
        return Target.find(self.target).load(getattr(torch, self.precision), "cpu")

    def first(self, count: int) -> "Exam":
        return replace(self, conversations=self.conversations[:count])

    def prompts(self) -> list[list[int]]:
        chat = Chat(Target.find(self.target).tokenizer)
        return [list(chat.prompt_ids(messages[:-1])) for messages in self.conversations]


def learn(exam: Exam, folder: Path, flags: str) -> Path:
    """Train on the conversations; returns the run's folder."""
    rows = [{"messages": messages} for messages in exam.conversations]
    datasets.Dataset.from_list(rows).save_to_disk(folder / "data")
    quiet = "--watch.port -1 --watch.console off --evaluate.every 0 --batches.epochs 100000"
    where = ("--target", exam.target, "--data", folder / "data", "--runs", folder / "runs", "--name", "learnt")
    command("train", *where, "--precision", exam.precision, *quiet.split(), *flags.split())
    return folder / "runs" / "learnt"


def export(checkpoint: Path, output: Path) -> Path:
    command("export", "--checkpoint", checkpoint, "--output", output)
    return output


def by_their_loop(exam: Exam, exported: Path, model: Any = None, drafter: Any = None) -> list[Any]:
    """What z-lab's package makes of the exported folder: its statistics for each prompt. Another model may be asked instead."""
    model = model or exam.model()
    drafter = drafter or load_reference(exported, model.dtype)
    stop_ids = stop_token_ids(model)
    return [decode(drafter, model, prompt, max_new_tokens=exam.max_new_tokens, stop_ids=stop_ids) for prompt in exam.prompts()]


def by_our_loop(exam: Exam, exported: Path) -> list[Decoded]:
    model = exam.model()
    with SpeculativeDecoder(model, load_trained(str(exported)).drafter) as speculator:
        return [
            speculator.decode(prompt, max_new_tokens=exam.max_new_tokens, stop_ids=stop_token_ids(model))
            for prompt in exam.prompts()
        ]


def by_our_command(exam: Exam, exported: Path, folder: Path) -> dict[str, Any]:
    """What `evaluate --json` says of the exported folder."""
    asked = folder / "prompts.jsonl"
    asked.write_text("".join(json.dumps({"messages": messages[:-1]}) + "\n" for messages in exam.conversations))
    words = ("--checkpoint", exported, "--prompts", asked, "--max-new-tokens", exam.max_new_tokens, "--device", "cpu", "--json")
    return dict(json.loads(command("evaluate", *words)))


def tokens_per_round(theirs: Sequence[Any]) -> float:
    """Mean over all rounds of all prompts."""
    rounds = [length for stats in theirs for length in stats.acceptance_lengths]
    return sum(rounds) / len(rounds)


def said_in(theirs: Sequence[Any]) -> list[list[int]]:
    """The tokens of each answer."""
    return [stats.output_ids[0, stats.num_input_tokens :].tolist() for stats in theirs]
