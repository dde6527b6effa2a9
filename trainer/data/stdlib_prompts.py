"""Prompts about text that every Python ships: its language reference in `pydoc_data.topics` and its library's docstrings.

Nothing is downloaded. The same Python version and seed give the same prompts in the same order.
"""

from __future__ import annotations

import importlib
import inspect
import random
import re
from collections.abc import Iterator
from pydoc_data.topics import topics

MODULES = """
argparse array ast base64 bisect calendar cmath codecs collections colorsys configparser contextlib copy csv
dataclasses datetime decimal difflib email.utils enum filecmp fileinput fnmatch fractions functools gettext
glob gzip hashlib heapq hmac html inspect io ipaddress itertools json keyword linecache locale logging math
mimetypes numbers operator os.path pathlib pickle pprint queue random re reprlib sched secrets shelve shlex
shutil statistics string stringprep struct tempfile textwrap threading time timeit tokenize traceback types
typing unicodedata urllib.parse uuid warnings weakref zipfile zlib
""".split()  # noqa: SIM905 - a list of literals would take a line for each

PASSAGE_REQUESTS = (
    ("summary", "Summarise this passage in one or two sentences:"),
    ("plain_words", "Explain this in plain words for a beginner, in one or two sentences:"),
    ("question", "Write one question that this passage answers:"),
)
FUNCTION_REQUESTS = (
    ("function", "In one or two sentences, what does Python's `{name}` do? Its documentation says: {text}"),
    ("use", "When would a programmer use Python's `{name}`? Answer in one sentence. Its documentation says: {text}"),
    ("rewrite", "Rewrite this sentence in simpler words: {text}"),
    ("example", "Write one short line of Python code that uses `{name}`. Its documentation says: {text}"),
)
MODULE_REQUEST = ("module", "What is Python's `{name}` module used for? Answer in one or two sentences.")
STATEMENT_REQUEST = ("statement", "In one or two sentences, tell a beginner about this part of Python: {name}.")


def stdlib_prompts(seed: int) -> list[tuple[str, str]]:
    """All prompts as (category, text), shuffled."""
    prompts = list(dict.fromkeys([*_about_passages(), *_about_functions(), *_about_modules(), *_about_statements()]))
    random.Random(seed).shuffle(prompts)
    return prompts


def _about_passages() -> Iterator[tuple[str, str]]:
    passages = sorted({passage for text in topics.values() for passage in _prose(text)})
    for number, passage in enumerate(passages):
        category, request = PASSAGE_REQUESTS[number % len(PASSAGE_REQUESTS)]
        yield category, f"{request}\n\n{passage}"


def _about_functions() -> Iterator[tuple[str, str]]:
    for number, (name, text) in enumerate(sorted(_docstrings())):
        category, request = FUNCTION_REQUESTS[number % len(FUNCTION_REQUESTS)]
        yield category, request.format(name=name, text=text)


def _about_modules() -> Iterator[tuple[str, str]]:
    category, request = MODULE_REQUEST
    return ((category, request.format(name=name)) for name in MODULES)


def _about_statements() -> Iterator[tuple[str, str]]:
    category, request = STATEMENT_REQUEST
    titles = sorted({text.strip().splitlines()[0] for text in topics.values()})
    return ((category, request.format(name=title)) for title in titles)


def _prose(text: str) -> Iterator[str]:
    """The paragraphs of a help text that are plain sentences: no grammar, code, lists or headings."""
    for paragraph in re.split(r"\n\s*\n", text):
        words = " ".join(paragraph.split()).replace("*", "")
        plain = paragraph[0].isupper() and words.endswith(".") and "::=" not in words
        if plain and 120 <= len(words) <= 420 and not words.startswith(("Changed in version", "Added in version", "New in")):
            yield words


def _docstrings() -> Iterator[tuple[str, str]]:
    """(name, first paragraph of the docstring) of the public functions and classes of `MODULES`."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", None) or dir(module):
            member = getattr(module, name, None)
            if name.startswith("_") or not (inspect.isroutine(member) or inspect.isclass(member)):
                continue
            text = " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split())
            if 40 <= len(text) <= 300 and text[0].isupper() and text.endswith("."):
                yield f"{module_name}.{name}", text
