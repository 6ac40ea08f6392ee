"""Multiple choice: options in all their forms, the choice that an answer names, and the ``choices`` of pipelines.

The standard keeps ``options`` (``[{"id": "A", "content": "..."}]``) apart from the answer. Pipelines that came before
it read ``choices`` (``[{"index": 0, "label": "A", "message": {...}}]``), ``metadata.option_map`` (id to text) and
``metadata.correct_choice`` (an id). Both ways are here.
"""

from __future__ import annotations

import copy
import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from genmeter.errors import GenmeterError
from genmeter.schema.fragments import json_name, read_content

_CONTENT_KEYS = ("content", "text", "label", "choice", "answer")
# What dresses an id: (B), [B], **B**, B., "B", \boxed{B}, $B$.
_OPEN = r"(?:\\boxed\{|\\text\{|[\s(\[{<*_`'\"$#【（「《“‘:：-])*"
_CLOSING = " \n)]}>*_`'\"$.。,，:：;；!！、】）」》”’"
_CLOSE = f"[{re.escape(_CLOSING)}]*"
# What announces the answer. The negated forms ("the answer is not") never match: the id must follow at once.
_ANNOUNCE = (
    r"(?:\b(?:final|correct|right|best|my)?\s*(?:answer|choice|option)(?:\s+(?:is|would\s+be|should\s+be|=))?"
    r"|(?:正确)?(?:答案|选项)(?:应该|应当)?(?:是|为|选)?|(?<!不)(?:应该|应当|应)?选择?)"
)
_LABEL_END = r"[.)\]:：、．）】]"
_NEGATION = re.compile(r"\b(?:not|no|none|neither|nor|never|except|cannot)\b|n't\b|[不非没无]|除了", re.IGNORECASE)
_ALSO = re.compile(r"[\s)\]*.]*(?:\b(?:or|and)\b|[/&,，、和或与及])[\s(\[*]*")
_DENIED = re.compile(r"[\s)\]*]*(?:(?:is|was)(?:n't|\s+(?:not|wrong|incorrect|false))\b|不|错)", re.IGNORECASE)
_REASON = re.compile(r"\s+(?:because|since|as|for|which)\b", re.IGNORECASE)


class Choice(NamedTuple):
    """One option: its id as a string, and its text."""

    id: str
    content: str


def read_options(options: Any) -> list[Choice]:
    """Read options in any form: objects with ``id`` and ``content``, strings, or an object of ids and texts.

    What has no id gets a letter by its place: A to Z, then AA, AB and so on. An object's text is its ``content``, else
    its ``text``, ``label``, ``choice`` or ``answer``.

    Raises:
        GenmeterError: ``bad_sample`` where options are neither a list nor an object, an option cannot be read, or two
            have the same id.
    """
    if isinstance(options, Mapping):
        items: list[Any] = [{"id": key, "content": value} for key, value in options.items()]
    elif isinstance(options, (list, tuple)):
        items = list(options)
    else:
        raise GenmeterError("bad_sample", f"options: expected a list, found {json_name(options)}")
    read: list[Choice] = []
    taken: set[str] = set()
    for number, item in enumerate(items):
        choice = _read_option(item, number)
        if choice.id in taken:
            raise GenmeterError("bad_sample", f"options[{number}].id: expected an id that no other option has")
        taken.add(choice.id)
        read.append(choice)
    return read


def resolve_choice(answer: str, options: Any) -> str | None:
    """The id of the option that an answer names, or ``None`` if it names none or more than one.

    Only what follows the last ``</think>`` is read. The first of these rules that applies decides:

    1. The whole answer is an id, be it dressed (``(B)``, ``**B**.``, ``\\boxed{B}``).
    2. The whole answer is an option's text, or its id and text (``B. a dolphin``).
    3. An id or a text follows at once on words that announce an answer (``the answer is B``, ``答案是B``); the last
       such place counts. Two ids there (``B or C``) name no option.
    4. The last line, taken alone, is one of 1 and 2.
    5. Lines begin with an id and a full stop, bracket or colon (``B. Dolphins are mammals``), and all with the same.
    6. The text of one option alone stands in the answer, as whole words, and the answer holds no negation.

    Case, width and runs of white space make no difference, unless two options differ in these alone. An id that could
    be a word (``A dolphin``, ``I think``) is only taken where punctuation or the end follows.

    Args:
        answer: What a model said.
        options: As for :func:`read_options`.

    Raises:
        GenmeterError: ``bad_sample`` where the options cannot be read.
    """
    choices = read_options(options)
    text = _even(answer.rpartition("</think>")[2])
    if not text or not choices:
        return None
    found = _whole(text, choices)
    if found is not None:
        return found
    announced = _announced(text, choices)
    if announced:
        return announced[-1]
    lines = [line for line in (line.strip() for line in text.split("\n")) if line]
    if len(lines) > 1:
        found = _whole(lines[-1], choices)
        if found is not None:
            return found
    labels = {found for line in lines if (found := _leading(line, choices)) is not None}
    if labels:
        return labels.pop() if len(labels) == 1 else None
    return _mentioned(text, choices)


def correct_choice(sample: Mapping[str, Any]) -> str | None:
    """The id of the right option: of ``metadata.correct_choice``, else ``references[0]``, else ``label``; or ``None``.

    Each may be an id or the option's text, but nothing else: a reference is no answer that would have to be understood.
    """
    options = sample.get("options")
    if not options:
        return None
    choices = read_options(options)
    metadata = sample.get("metadata")
    given = metadata.get("correct_choice") if isinstance(metadata, Mapping) else None
    references = sample.get("references")
    first = references[0] if isinstance(references, list) and references else references
    for value in (given, first, sample.get("label")):
        text = _text(value)
        found = _whole(_even(text), choices) if text else None
        if found is not None:
            return found
    return None


def options_to_choices(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which ``choices``, ``metadata.option_map`` and ``metadata.correct_choice`` say what ``options`` say.

    ``options`` give way to ``choices``, which keep their order; an option that is more than an id and a text (or a
    plain string, or has a number for an id) is kept whole in its choice's ``option``. Without ``options``, or with
    ``choices`` there already, the copy is unchanged.

    Raises:
        GenmeterError: ``bad_sample`` where the options cannot be read.
    """
    copied = copy.deepcopy(dict(sample))
    if not copied.get("options") or "choices" in copied:
        return copied
    right = correct_choice(copied)
    options = copied.pop("options")
    read = read_options(options)
    copied["choices"] = [_to_choice(i, choice, options) for i, choice in enumerate(read)]
    metadata = copied.get("metadata")
    added: dict[str, Any] = {"option_map": {choice.id: choice.content for choice in read}}
    if right is not None:
        added["correct_choice"] = right
    copied["metadata"] = {**(metadata if isinstance(metadata, dict) else {}), **added}
    return copied


def choices_to_options(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The way back from :func:`options_to_choices`: a copy with ``options`` in place of ``choices``.

    ``metadata.option_map`` goes where the options say the same, and ``metadata.correct_choice`` where the references or
    the label do; without either of these it becomes ``references``. ``metadata`` that is empty then goes too.

    Raises:
        GenmeterError: ``bad_sample`` where a choice holds no text.
    """
    copied = copy.deepcopy(dict(sample))
    choices = copied.get("choices")
    if not isinstance(choices, list) or not choices or copied.get("options"):
        return copied
    copied["options"] = [_from_choice(number, choice) for number, choice in enumerate(choices)]
    del copied["choices"]
    metadata = copied.get("metadata")
    if not isinstance(metadata, dict):
        return copied
    said = {choice.id: choice.content for choice in read_options(copied["options"])}
    if metadata.get("option_map") == said:
        del metadata["option_map"]
    right = metadata.pop("correct_choice", None)
    if right is not None:
        if not copied.get("references") and copied.get("label") is None:
            copied["references"] = [right]
        if correct_choice(copied) != right:
            metadata["correct_choice"] = right
    if not metadata:
        del copied["metadata"]
    return copied


def _to_choice(number: int, choice: Choice, options: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"type": "text", "text": choice.content}]}
    written: dict[str, Any] = {"index": number, "label": choice.id, "message": message}
    if isinstance(options, list) and options[number] != {"id": choice.id, "content": choice.content}:
        written["option"] = options[number]
    return written


def _from_choice(number: int, choice: Any) -> Any:
    if not isinstance(choice, dict):
        return {"id": _letter(number), "content": _read_option(choice, number).content}
    if "option" in choice:
        return choice["option"]
    label = choice.get("label", choice.get("id"))
    message = choice.get("message")
    content = _text(message.get("content")) if isinstance(message, dict) else _text(message)
    if content is None:
        content = next((found for key in _CONTENT_KEYS if (found := _text(choice.get(key))) is not None), None)
    if content is None:
        raise GenmeterError("bad_sample", f"choices[{number}]: expected a text")
    return {"id": _letter(number) if label is None else str(label), "content": content}


def _read_option(item: Any, number: int) -> Choice:
    if isinstance(item, Mapping):
        content = next((item[key] for key in _CONTENT_KEYS if item.get(key) is not None), "")
        key = item.get("id")
    else:
        content, key = item, None
    text = _text(content)
    if text is None or (not isinstance(item, Mapping) and not isinstance(item, (str, int, float))):
        raise GenmeterError("bad_sample", f"options[{number}]: expected an id and a text, found {json_name(content)}")
    if key is None:
        return Choice(_letter(number), text)
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise GenmeterError("bad_sample", f"options[{number}].id: expected a string, found {json_name(key)}")
    return Choice(str(key), text)


def _letter(number: int) -> str:
    name = ""
    number += 1
    while number:
        number, place = divmod(number - 1, 26)
        name = chr(ord("A") + place) + name
    return name


def _text(value: Any) -> str | None:
    """The text of a string, a number, fragments, or an object with an answer; ``None`` if there is none."""
    if isinstance(value, Mapping) and "answer" in value:
        value = value["answer"]
    if value is None or isinstance(value, bool):
        return None
    parts = read_content(value)
    if any(part.kind != "text" for part, _ in parts):
        return None
    return "\n".join(part.value for part, _ in parts) if parts else None


def _even(text: str) -> str:
    text = unicodedata.normalize("NFKC", text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines()).strip()


@lru_cache(4096)
def _pattern(identifier: str) -> str:
    return re.escape(_even(identifier))


def _pick(matches: list[tuple[Choice, bool]]) -> str | None:
    """The one option that matched; of several the one that matched to the letter."""
    exact = [choice for choice, same in matches if same]
    kept = exact or [choice for choice, _ in matches]
    return kept[0].id if len(kept) == 1 else None


def _whole(text: str, choices: list[Choice]) -> str | None:
    opening = re.match(_OPEN, text)
    forms = {text, text[opening.end() if opening else 0 :].rstrip(_CLOSING)}
    matches = []
    for choice in choices:
        name = _even(choice.id)
        if name and any(form.casefold() == name.casefold() for form in forms):
            matches.append((choice, name in forms))
    if matches:
        return _pick(matches)
    for choice in choices:
        content = _even(choice.content)
        if content and any(_same(form, content) for form in forms):
            matches.append((choice, content in forms))
    if matches:
        return _pick(matches)
    for choice in choices:
        label = re.match(rf"{_OPEN}{_pattern(choice.id)}{_CLOSE}(?<![\w])", text, re.IGNORECASE)
        content = _even(choice.content)
        if choice.id and content and label and _same(text[label.end() :], content):
            matches.append((choice, text.startswith(_even(choice.id))))
    return _pick(matches)


def _same(left: str, right: str) -> bool:
    if left.casefold() == right.casefold():
        return True
    ends = " .。!！"
    bare = left.casefold().strip(ends)
    return bool(bare) and bare == right.casefold().strip(ends)


def _announced(text: str, choices: list[Choice]) -> list[str | None]:
    """What each announcement names, in order; ``None`` for one that names two."""
    found: list[str | None] = []
    # Only so much after each place is looked at as two options can fill, so that long answers take linear time.
    window = 200 + 2 * max(len(choice.id) + len(choice.content) for choice in choices)
    for match in re.finditer(rf"{_ANNOUNCE}\s*", text, re.IGNORECASE):
        rest = text[match.end() : match.end() + window]
        opening = re.match(_OPEN, rest)
        rest = rest[opening.end() :] if opening else rest
        named = _named_at(rest, choices)
        if named is None:
            continue
        identifier, end = named
        if _DENIED.match(rest, end):
            continue
        also = _ALSO.match(rest, end)
        other = _named_at(rest[also.end() :], choices) if also else None
        found.append(identifier if other is None or other[0] == identifier else None)
    return found


def _named_at(rest: str, choices: list[Choice]) -> tuple[str, int] | None:
    """The option whose text or id stands at the start, and where that ends; the longest counts."""
    best: tuple[int, str] | None = None
    for choice in choices:
        content = _even(choice.content)
        match = re.match(rf"(?:(?:the|a|an) )?{re.escape(content)}(?!\w)", rest, re.IGNORECASE) if content else None
        if match and (best is None or match.end() > best[0]):
            best = match.end(), choice.id
        name = _even(choice.id)
        longest = name and (best is None or len(name) > best[0])
        if longest and rest[: len(name)].casefold() == name.casefold() and _ends_id(rest, len(name), name):
            best = len(name), choice.id
    return (best[1], best[0]) if best else None


def _ends_id(rest: str, end: int, name: str) -> bool:
    after = rest[end:]
    if after and after[0].isascii() and (after[0].isalnum() or after[0] in "_'-"):
        return False
    if re.match(r"[ ]+[A-Za-z]", after) and (rest[:end] != name or name in ("A", "I", "a", "i")):
        return bool(_REASON.match(after)) or bool(_ALSO.match(after))
    return True


def _leading(line: str, choices: list[Choice]) -> str | None:
    matches = []
    for choice in choices:
        start = rf"{_OPEN}({_pattern(choice.id)})\s*\**{_LABEL_END}(?=\W|$|[^\x00-\x7f])"
        match = re.match(start, line, re.IGNORECASE) if choice.id.strip() else None
        if match:
            matches.append((choice, match.group(1) == _even(choice.id)))
    return _pick(matches)


def _mentioned(text: str, choices: list[Choice]) -> str | None:
    if _NEGATION.search(text):
        return None
    found: set[str] = set()
    # The longest first, and what is found is blanked: a text inside another option's text is not what was meant.
    by_content: dict[str, list[str]] = {}
    for choice in choices:
        by_content.setdefault(_even(choice.content).casefold(), []).append(choice.id)
    text = text.casefold()
    for content in sorted(by_content, key=len, reverse=True):
        if not content:
            continue
        left = r"(?<![a-z0-9_])" if content[0].isascii() and content[0].isalnum() else ""
        right = r"(?![a-z0-9_])" if content[-1].isascii() and content[-1].isalnum() else ""
        text, count = re.subn(left + re.escape(content) + right, "\0", text)
        if count:
            found.update(by_content[content])
    return found.pop() if len(found) == 1 else None
