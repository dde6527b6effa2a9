"""Chat templates in the shapes of well-known models, and tokenizers that have their special tokens."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are helpful<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

GENERATION = """{% for message in messages %}{% if message['role'] == 'assistant' %}<|im_start|>assistant
{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}
{% else %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LLAMA3 = """{{- bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}
{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + strftime_now('%d %b %Y') + '\\n\\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

QWEN3 = """{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(last=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.searching and message.role == 'user' %}{%- set ns.searching = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content %}{%- set thoughts = '' %}
{%- if message.reasoning_content is string %}{%- set thoughts = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last and (loop.last or thoughts) %}
{{- '<|im_start|>assistant\\n<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}
{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"""

MISTRAL = """{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set talk = messages[1:] %}
{%- else %}{%- set talk = messages %}{%- endif %}{{- bos_token }}
{%- for message in talk %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant') }}{%- endif %}
{%- if message['role'] == 'user' %}
{%- if loop.last and system is defined %}{{- '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}
{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}
{%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}{%- endfor %}"""

# Mistral's own moves the system prompt to the last turn of the user, also where an answer follows it.
MISTRAL_LAST_USER = MISTRAL.replace("loop.last and system", "loop.index0 >= talk|length - 2 and system")

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}
{%- set role = message['role'] %}{% endif %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

LLAMA2 = """{% for message in messages %}{% if message['role'] == 'user' %}
{{- bos_token + '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"""

PLAIN = """{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"""

CORPUS = ["Hello there, how are you? I am fine. assistant user system model answer question the quick brown fox\n\n"] * 4


def byte_level(
    template: str, special: str, *, bos: str | None = None, eos: str | None = None, trim: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with merges; with `trim`, the offsets of a word leave the space before it out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if trim:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finish(tokenizer, template, special, bos, eos)


def metaspace(template: str, special: str, *, bos: str | None = None, eos: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer in the manner of SentencePiece: the space before a word is part of its first token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", *bytes_], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finish(tokenizer, template, special, bos, eos)


def _finish(tokenizer: Tokenizer, template: str, special: str, bos: str | None, eos: str | None) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special.split()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, chat_template=template)
