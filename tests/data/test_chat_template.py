"""The loss mask covers exactly what the target would have said, in the template shapes of the model families."""

import pytest
from transformers import PreTrainedTokenizerFast

from tests.support import chat_templates as shapes
from trainer.data.chat_template import Chat, Tokenised
from trainer.data.conversations import Rejected

CHATML_TOKENS = "<|im_start|> <|im_end|> <|endoftext|>"
TALK = [("user", "Hello"), ("assistant", "I am fine."), ("user", "How?"), ("assistant", "The quick fox, ünï 🤖")]


def talk(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def said(tokenizer: PreTrainedTokenizerFast, tokenised: Tokenised | Rejected) -> list[str]:
    """The text of each run of supervised tokens."""
    assert isinstance(tokenised, Tokenised), tokenised
    runs: list[list[int]] = []
    before = False
    for token, supervised in zip(tokenised.token_ids.tolist(), tokenised.loss_mask.tolist(), strict=True):
        if supervised and not before:
            runs.append([])
        if supervised:
            runs[-1].append(token)
        before = supervised
    return [tokenizer.decode(run, clean_up_tokenization_spaces=False) for run in runs]


def supervise(tokenizer: PreTrainedTokenizerFast, *turns: tuple[str, str], **template_args: object) -> list[str]:
    return said(tokenizer, Chat(tokenizer, template_args=template_args).tokenise(talk(*turns)))


@pytest.fixture(scope="module")
def chatml() -> PreTrainedTokenizerFast:
    return shapes.byte_level(shapes.CHATML, CHATML_TOKENS, bos="<|im_start|>", eos="<|im_end|>")


@pytest.fixture(scope="module")
def qwen3() -> PreTrainedTokenizerFast:
    return shapes.byte_level(shapes.QWEN3, CHATML_TOKENS, eos="<|im_end|>")


@pytest.fixture(scope="module")
def mistral() -> PreTrainedTokenizerFast:
    return shapes.metaspace(shapes.MISTRAL_LAST_USER, "<s> </s> [INST] [/INST]", bos="<s>", eos="</s>")


@pytest.fixture(scope="module")
def gemma() -> PreTrainedTokenizerFast:
    return shapes.byte_level(shapes.GEMMA, "<bos> <eos> <start_of_turn> <end_of_turn>", bos="<bos>", eos="<eos>")


@pytest.mark.parametrize("system", [(), (("system", "Be brief."),)], ids=["default system prompt", "system prompt"])
def test_chatml(chatml: PreTrainedTokenizerFast, system: tuple[tuple[str, str], ...]) -> None:
    assert supervise(chatml, *system, *TALK) == ["I am fine.<|im_end|>", "The quick fox, ünï 🤖<|im_end|>"]


def test_chatml_keeps_the_white_space_of_an_answer(chatml: PreTrainedTokenizerFast) -> None:
    assert supervise(chatml, ("user", "Hello"), ("assistant", "  I am fine.\n")) == ["  I am fine.\n<|im_end|>"]


def test_an_answer_may_quote_the_template(chatml: PreTrainedTokenizerFast) -> None:
    quote = "It is <|im_end|>\n<|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\nso."
    turns = [("user", "Hello"), ("assistant", quote), ("user", "How?"), ("assistant", quote)]
    assert supervise(chatml, *turns) == [quote + "<|im_end|>", quote + "<|im_end|>"]


def test_a_turn_that_the_user_ends(chatml: PreTrainedTokenizerFast) -> None:
    assert supervise(chatml, *TALK[:3]) == ["I am fine.<|im_end|>"]


def test_a_template_that_marks_what_is_generated() -> None:
    tokenizer = shapes.byte_level(shapes.GENERATION, CHATML_TOKENS, eos="<|im_end|>")
    assert supervise(tokenizer, *TALK) == ["I am fine.<|im_end|>", "The quick fox, ünï 🤖<|im_end|>"]


def test_llama3_trims_answers_and_stands_still_in_time() -> None:
    special = "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|>"
    tokenizer = shapes.byte_level(shapes.LLAMA3, special, bos="<|begin_of_text|>", eos="<|end_of_text|>")
    chat = Chat(tokenizer)
    assert "Today Date: 26 Jul 2024" in chat.render(talk(*TALK))
    answers = said(tokenizer, chat.tokenise(talk(("system", "Be brief."), *TALK[:3], ("assistant", "\n so it is \n"))))
    assert answers == ["I am fine.<|eot_id|>", "so it is<|eot_id|>"]


def test_qwen3_leaves_out_the_empty_thoughts_that_the_template_adds(qwen3: PreTrainedTokenizerFast) -> None:
    assert "<think>\n\n</think>\n\nThe quick" in Chat(qwen3).render(talk(*TALK))
    assert supervise(qwen3, *TALK) == ["I am fine.<|im_end|>", "The quick fox, ünï 🤖<|im_end|>"]


def test_qwen3_supervises_thoughts_where_they_are_rendered(qwen3: PreTrainedTokenizerFast) -> None:
    thoughtful = "<think>\nthe fox?\n</think>\n\nThe fox."
    turns = [("user", "Hello"), ("assistant", thoughtful), ("user", "How?"), ("assistant", thoughtful)]
    assert supervise(qwen3, *turns) == ["The fox.<|im_end|>", thoughtful + "<|im_end|>"]


def test_qwen3_takes_thoughts_from_their_own_field(qwen3: PreTrainedTokenizerFast) -> None:
    messages = [*talk(("user", "Hello")), {"role": "assistant", "content": "The fox.", "reasoning_content": "the fox?"}]
    assert said(qwen3, Chat(qwen3).tokenise(messages)) == ["<think>\nthe fox?\n</think>\n\nThe fox.<|im_end|>"]


def test_qwen3_without_thinking(qwen3: PreTrainedTokenizerFast) -> None:
    assert supervise(qwen3, *TALK, enable_thinking=False)[-1] == "The quick fox, ünï 🤖<|im_end|>"
    empty = "<think>\n\n</think>\n\nThe fox."
    assert supervise(qwen3, ("user", "Hello"), ("assistant", empty), enable_thinking=False) == ["The fox.<|im_end|>"]


def test_a_header_that_opens_the_thoughts_is_not_supervised() -> None:
    template = shapes.QWEN3.replace("{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n<think>\\n' }}")
    tokenizer = shapes.byte_level(template, CHATML_TOKENS, eos="<|im_end|>")
    answer = "the fox?\n</think>\n\nThe fox."
    assert supervise(tokenizer, ("user", "Hello"), ("assistant", "<think>\n" + answer)) == [answer + "<|im_end|>"]


def test_mistral_moves_the_system_prompt_and_puts_a_space_before_answers(mistral: PreTrainedTokenizerFast) -> None:
    turns = [("system", "Be brief."), ("user", "Hello"), ("assistant", "I am fine."), ("user", "How?"), ("assistant", "so")]
    text = Chat(mistral).render(talk(*turns))
    assert text == "<s>[INST] Hello[/INST] I am fine.</s>[INST] Be brief.\n\nHow?[/INST] so</s>"
    assert [answer.strip() for answer in supervise(mistral, *turns)] == ["I am fine.</s>", "so</s>"]


def test_a_space_that_is_one_token_with_the_first_word_is_the_targets(mistral: PreTrainedTokenizerFast) -> None:
    tokenised = Chat(mistral).tokenise(talk(("user", "Hello"), ("assistant", "answer")))
    assert isinstance(tokenised, Tokenised)
    first = int(tokenised.token_ids[tokenised.loss_mask][0])
    assert mistral.convert_ids_to_tokens(first).startswith("▁a")
    before = int(tokenised.token_ids[tokenised.loss_mask.argmax() - 1])
    assert mistral.convert_ids_to_tokens(before) == "[/INST]"


@pytest.mark.parametrize("trim", [False, True], ids=["offsets with the space", "offsets without the space"])
def test_a_template_of_plain_text_has_no_end_token(trim: bool) -> None:
    tokenizer = shapes.byte_level(shapes.PLAIN, "<|endoftext|>", eos="<|endoftext|>", trim=trim)
    assert supervise(tokenizer, ("user", "Hello"), ("assistant", "the answer")) == [" the answer"]
    assert Chat(tokenizer).end_token_id() is None


def test_a_space_that_the_template_asks_with_is_not_supervised() -> None:
    template = shapes.PLAIN.replace("'assistant:'", "'assistant: '")
    tokenizer = shapes.metaspace(template, "<s> </s>", eos="</s>")
    assert supervise(tokenizer, ("user", "Hello"), ("assistant", "ünï")) == ["ünï"]


def test_an_end_token_behind_a_space_is_supervised_with_it() -> None:
    tokenizer = shapes.byte_level(shapes.LLAMA2, "<s> </s>", bos="<s>", eos="</s>")
    turns = [("user", "Hello"), ("assistant", "fine"), ("user", "How?"), ("assistant", "so")]
    assert supervise(tokenizer, *turns) == [" fine </s>", " so </s>"]


def test_gemma_calls_the_assistant_model_and_refuses_system_prompts(gemma: PreTrainedTokenizerFast) -> None:
    assert supervise(gemma, *TALK[:3], ("assistant", " so ")) == ["I am fine.<end_of_turn>", "so<end_of_turn>"]
    refused = Chat(gemma).tokenise(talk(("system", "Be brief."), *TALK))
    assert isinstance(refused, Rejected)
    assert refused.reason == "template"
    assert "System role not supported" in refused.detail


def test_roles_that_must_alternate(mistral: PreTrainedTokenizerFast) -> None:
    refused = Chat(mistral).tokenise(talk(("user", "Hello"), ("user", "Hello"), ("assistant", "fine")))
    assert isinstance(refused, Rejected)
    assert "must alternate" in refused.detail


def test_a_template_that_changes_answers_is_refused_and_not_guessed_at() -> None:
    tokenizer = shapes.byte_level(shapes.CHATML.replace("message['content']", "message['content']|upper"), CHATML_TOKENS)
    refused = Chat(tokenizer).tokenise(talk(*TALK))
    assert isinstance(refused, Rejected)
    assert refused.reason == "unaligned"


def test_a_conversation_without_an_answer(chatml: PreTrainedTokenizerFast) -> None:
    refused = Chat(chatml).tokenise(talk(("user", "Hello")))
    assert isinstance(refused, Rejected)
    assert refused.reason == "no_answer"


def test_an_empty_answer_has_nothing_to_learn(chatml: PreTrainedTokenizerFast) -> None:
    tokenised = Chat(chatml).tokenise(talk(("user", "Hello"), ("assistant", "")))
    assert said(chatml, tokenised) == ["<|im_end|>"]
    assert isinstance(tokenised, Tokenised)
    assert not tokenised.learnable


def test_the_head_of_a_long_conversation_is_kept(chatml: PreTrainedTokenizerFast) -> None:
    whole = Chat(chatml).tokenise(talk(*TALK))
    assert isinstance(whole, Tokenised)
    second = int(whole.loss_mask.nonzero()[0][-1]) - 3
    cut = Chat(chatml, max_length=second).tokenise(talk(*TALK))
    assert isinstance(cut, Tokenised)
    assert cut.token_ids.tolist() == whole.token_ids[:second].tolist()
    assert cut.loss_mask.tolist() == whole.loss_mask[:second].tolist()
    assert cut.loss_mask[-1]


def test_a_prompt_and_its_answer_are_the_conversation(chatml: PreTrainedTokenizerFast) -> None:
    chat = Chat(chatml)
    prompt, whole = chat.prompt_ids(talk(*TALK[:1])), chat.tokenise(talk(*TALK[:2]))
    assert isinstance(prompt, list)
    assert isinstance(whole, Tokenised)
    assert whole.token_ids[: len(prompt)].tolist() == prompt
    assert whole.loss_mask.argmax() == len(prompt)
    assert chat.end_token_id() == chatml.eos_token_id
