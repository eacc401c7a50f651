"""A clerk by script: the replies a sensible model would give, chosen by what the history shows."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from helix_dbos.core.messages import AnsweredCall, AssistantContent, UserContent
from helix_dbos.models.port import ModelRequest
from helix_dbos.testing.scripted import Reply, ScriptedCall, ScriptedModel, call, calls, say

__all__ = ["MESSAGE", "ORDER", "scripted_clerk"]

ORDER = "7"
CENTS = 4_990
MESSAGE = "Order 7 arrived broken: refund 49.90, and e-mail me."

_REFUND = call("issue_refund", {"order_id": ORDER, "cents": CENTS})
_RECEIPT = call("mail_receipt", {"order_id": ORDER})
_FIRST = calls(
    _REFUND,
    _RECEIPT,
    call("set_preference", {"name": "contact", "value": "e-mail"}),
    call("write_ledger", {"order_id": ORDER, "cents": CENTS}),
    call("notify_finance", {"order_id": ORDER}),
    text="I refund the order and book it.",
)
_LOOK = calls(
    call("look_up_order", {"order_id": ORDER}), text="Some outcomes are unknown: I look before I repeat."
)


def scripted_clerk() -> ScriptedModel:
    """A model that refunds order 7, looks the order up when in doubt, and repeats only what is missing."""
    return ScriptedModel(_next_reply)


def _next_reply(request: ModelRequest) -> Reply:
    steps = _answers_since_user(request)
    if not steps:
        return _FIRST
    latest = steps[-1]
    if any(answer.is_error for answer in latest):
        return _LOOK
    looked = next((answer for answer in latest if answer.tool_name == "look_up_order"), None)
    missing = _missing(looked.content) if looked else ()
    if missing:
        return calls(*missing, text="The look-up shows what is missing.")
    in_doubt = any(answer.is_error for step in steps for answer in step)
    checked = " I checked that it was paid once." if in_doubt else ""
    return say(f"Order 7 is refunded: 49.90 are on their way, the receipt is in your mail.{checked}")


def _answers_since_user(request: ModelRequest) -> Sequence[Sequence[AnsweredCall]]:
    steps: list[Sequence[AnsweredCall]] = []
    for item in request.history:
        if isinstance(item, UserContent):
            steps = []
        elif isinstance(item, tuple):
            steps.append(item)
        else:
            assert isinstance(item, AssistantContent), "nobody writes notices in the demo"
    return steps


def _missing(seen: JsonValue) -> tuple[ScriptedCall, ...]:
    """What the look-up does not show, in the order in which it must be done."""
    if not isinstance(seen, dict):
        return (_REFUND, _RECEIPT)
    wanted = (("refunds", _REFUND), ("receipts", _RECEIPT))
    return tuple(made for name, made in wanted if seen.get(name) == 0)
