"""Builds conversations turn by turn: decides what to ask the target next, and turns its answers into training data.

Each later message of the user is asked after the target's own earlier answers. A conversation that cannot continue, because an
answer was cut off or the next question would not fit, keeps the turns before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.data.chat_template import Chat, Tokenised
from trainer.data.conversations import Rejected
from trainer.data.prompts import Prompt
from trainer.decoding.generate import Answer, Request
from trainer.prepare.answer_store import AnswerStore, StoredAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A finished conversation: its row in the data, and counts."""

    row: dict[str, Any]
    turns: int
    answer_tokens: int
    exact: bool
    """Whether training reads exactly the tokens that the target read and generated: a text has several tokenisations."""


class ConversationBuilder:
    """The prompts and the answers so far. At most `turns` messages of the user are asked of each prompt (0: all)."""

    def __init__(self, prompts: Sequence[Prompt], answers: AnswerStore, chat: Chat, *, turns: int, longest: int) -> None:
        self._prompts = prompts
        self._answers = answers
        self._chat = chat
        self._turns = turns
        self._longest = longest
        self.dropped: Counter[str] = Counter()
        """Prompts without a conversation, by reason."""
        self.cut_short: Counter[str] = Counter()
        """Conversations without their last turns, by reason."""

    def __len__(self) -> int:
        return len(self._prompts)

    def next_question(self, number: int, warn: Callable[[str], None] = lambda _: None) -> Request | None:
        """The next question of a prompt, if any. `warn` is called for the first one that is left out for each reason."""
        prompt, said = self._prompts[number], self._answers.of(number)
        if len(said) == self._wanted(prompt) or (said and not said[-1].finished):
            return None
        token_ids = self._chat.prompt_ids(_messages(prompt, said), limit=self._longest)
        if isinstance(token_ids, Rejected):
            counter = self.cut_short if said else self.dropped
            if not counter[token_ids.reason]:
                where = f"Turn {len(said) + 1} of prompt {number + 1}" if said else f"Prompt {number + 1}"
                warn(f"{where} is left out: {token_ids.detail}. Others like it are only counted.")
            counter[token_ids.reason] += 1
            return None
        return Request((number, len(said)), np.array(token_ids, dtype=np.int64))

    def add_answer(self, answer: Answer) -> Request | None:
        """Store an answer; returns the next question of the same prompt, if any."""
        text = self._chat.decode(answer.token_ids)
        self._answers.add(answer.key[0], StoredAnswer(text=text, token_ids=answer.token_ids, finished=answer.finished))
        return self.next_question(answer.key[0])

    def conversations(self, keep_unfinished: bool) -> Iterator[Conversation]:
        """Every conversation that can be learnt from, in the order of the prompts; the others are counted in `dropped`."""
        for number, prompt in enumerate(self._prompts):
            answers = self._answers.of(number)
            said = [one for one in answers if one.finished or keep_unfinished]
            if said:
                yield from self._conversation(number, prompt, said)
            elif answers:
                self.dropped["unfinished"] += 1
            if said and not answers[-1].finished and (len(said) < len(answers) or len(said) < self._wanted(prompt)):
                self.cut_short["unfinished"] += 1

    def _conversation(self, number: int, prompt: Prompt, said: list[StoredAnswer]) -> Iterator[Conversation]:
        messages = _messages(prompt, said)[: len(prompt.messages) + 2 * len(said) - 1]
        tokenised = self._chat.tokenise(messages)
        if isinstance(tokenised, Rejected) or not tokenised.learnable:
            self.dropped["nothing_to_learn"] += 1
            return
        row = {
            "messages": [{"role": message["role"], "content": message["content"]} for message in messages],
            "category": prompt.category,
            "finished": said[-1].finished,
        }
        yield Conversation(
            row=row,
            turns=len(said),
            answer_tokens=sum(len(one.token_ids) for one in said),
            exact=all(self._same_tokens(tokenised, _messages(prompt, said[:turn]), one) for turn, one in enumerate(said)),
        )

    def _wanted(self, prompt: Prompt) -> int:
        return min(self._turns or len(prompt.later) + 1, len(prompt.later) + 1)

    def _same_tokens(self, tokenised: Tokenised, asked: list[dict[str, str]], said: StoredAnswer) -> bool:
        token_ids = self._chat.prompt_ids(asked)
        if isinstance(token_ids, Rejected):
            return False
        heard = [*token_ids, *said.token_ids]
        return bool(tokenised.token_ids[: len(heard)].tolist() == heard)


def _messages(prompt: Prompt, said: Sequence[StoredAnswer]) -> list[dict[str, str]]:
    """The conversation up to the last answer, and the user's next message if there is one."""
    messages = [*prompt.messages]
    for turn, one in enumerate(said):
        messages.append({"role": "assistant", "content": one.text})
        messages += prompt.later[turn : turn + 1]
    return messages
