"""Chat messages: checked, and written out by the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from telescope.errors import TelescopeError

Message = dict[str, Any]
"""{"role": ..., "content": ...}, and what else the template reads, such as tool_calls."""


def checked_messages(prompt: Sequence[Any], number: int) -> list[Message]:
    """The messages of prompt `number`, each with a role and a text.

    A content that is a list of text parts becomes one text. Empty fields are left out: parquet
    files have them where another row has a value.
    """
    if not prompt:
        raise TelescopeError(f"prompt {number} is an empty list: give at least one chat message")
    messages = []
    for position, message in enumerate(prompt, 1):
        where = f"prompt {number}, message {position}"
        if not isinstance(message, Mapping):
            raise TelescopeError(
                f"{where} is {message!r}: a chat message is an object with `role` and `content`"
            )
        filled = {key: value for key, value in message.items() if value is not None}
        if not isinstance(filled.get("role"), str) or not filled["role"]:
            raise TelescopeError(f"{where} has no `role`: use system, user, assistant or tool")
        if "content" in filled:
            filled["content"] = _joined(filled["content"], where)
        elif not filled.get("tool_calls"):  # a message that calls a tool may say nothing
            raise TelescopeError(f"{where} has no `content`: give its text")
        messages.append(filled)
    return messages


def _joined(content: Any, where: str) -> str:
    """One text: the content itself, or its text parts one after the other."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise TelescopeError(f"{where}: `content` is {content!r}, not a text")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise TelescopeError(f"{where} has a part that is not a text: {part!r}")
        texts.append(text)
    return "".join(texts)


def chat_text(messages: Sequence[Message], number: int, tokenizer: Any) -> str:
    """The messages of prompt `number` as the model's template writes them.

    If the last one is the assistant's, the model goes on with it; else it begins an answer.
    The tools of the run's environment, `tokenizer.shown_tools`, are shown too.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise TelescopeError(
            "the prompts are chat messages, but the model's tokenizer has no chat template: "
            "give prompts as text, or a model with one"
        )
    goes_on = messages[-1]["role"] == "assistant"
    tools = getattr(tokenizer, "shown_tools", ())

    def written(**shown: Any) -> str:
        return str(
            tokenizer.apply_chat_template(
                list(messages),
                add_generation_prompt=not goes_on,
                continue_final_message=goes_on,
                tokenize=False,
                **shown,
            )
        )

    try:
        text = written(tools=list(tools)) if tools else written()
        is_shown = not tools or text != written()
    except Exception as error:  # a template is a program, and may raise anything
        raise TelescopeError(
            f"prompt {number}: the chat template cannot take it: {error}"
        ) from error
    if not is_shown:
        raise TelescopeError(
            "the model's chat template does not show tools: describe them in the prompts, "
            "and leave `tools` of the environment empty"
        )
    return text


def with_answer(messages: Sequence[Message], answer: str) -> list[Message]:
    """The messages and the assistant's answer; an answer that was begun is completed."""
    if messages and messages[-1]["role"] == "assistant":
        begun = messages[-1]
        return [*messages[:-1], {**begun, "content": begun.get("content", "") + answer}]
    return [*messages, {"role": "assistant", "content": answer}]
