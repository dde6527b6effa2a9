"""The overfit proof with a real target: eight answers of SmolLM2's, learnt by heart, decoded by z-lab's loop and by ours.

Takes about eight minutes on two cores. Higher learning rates take longer: at 1e-3 the same is not learnt in 260 steps.
"""

from pathlib import Path

import pytest
import torch

from tests.support.overfit import Exam, by_our_command, by_their_loop, export, learn, said_in, tokens_per_round
from trainer.data.chat_template import Chat
from trainer.target import smollm2
from trainer.target.load import Target

BLOCK, TOKENS = 16, 65  # the first token comes with the prompt, then four blocks
FLAGS = f"""--max-steps 260 --drafter.block-size {BLOCK} --drafter.layers 2 --drafter.anchors 32 --dataset.max-length 160
    --batches.token-budget 240 --optimizer.learning-rate 5e-4 --checkpoint.every 0 --cpu-threads 1"""
QUESTIONS = (
    "Why is the sky blue?",
    "How do I boil an egg?",
    "What is a prime number?",
    "Tell me a story about a fox.",
    "Explain what a compiler does.",
    "Write a letter to a friend who moved away.",
    "What happened in the year 1969?",
    "How does a bicycle stay upright?",
)


def greedy_answers(chat: Chat) -> list[list[dict[str, str]]]:
    """What the target says by transformers' own loop, cut where the exam ends."""
    model = Target.find("demo").load(torch.float32, "cpu")
    conversations = []
    for question in QUESTIONS:
        asked = [{"role": "user", "content": question}]
        prompt = torch.tensor([list(chat.prompt_ids(asked))])
        said = model.generate(prompt, do_sample=False, max_new_tokens=TOKENS)[0, prompt.shape[1] :].tolist()
        conversations.append([*asked, {"role": "assistant", "content": chat.decode(said)}])
    return conversations


@pytest.mark.slow(seconds=420)
@pytest.mark.timeout(3600)
def test_what_was_learnt_of_a_real_target_is_accepted_where_it_is_served(tmp_path: Path) -> None:
    if missing := smollm2.missing_parts():
        pytest.skip(missing)
    chat = Chat(Target.find("demo").tokenizer)
    exam = Exam("demo", greedy_answers(chat), TOKENS)
    exported = export(learn(exam, tmp_path, FLAGS), tmp_path / "exported")
    theirs = by_their_loop(exam, exported)
    served = tokens_per_round(theirs)
    assert served >= 0.8 * BLOCK
    measured = by_our_command(exam, exported, tmp_path)
    assert measured["acceptance_length"] >= 0.8 * BLOCK
    assert measured["acceptance_length"] == pytest.approx(served, rel=0.02)
    assert (measured["prompts"], measured["lossless"]) == (len(QUESTIONS), True)
    assert [chat.decode(said) for said in said_in(theirs)] == [messages[-1]["content"] for messages in exam.conversations]
