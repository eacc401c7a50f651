"""The refund desk: an agent whose tools move money, so that it matters what a crash leaves behind.

A tool's declaration says what recovery may do with a body that may have run:

    issue_refund -> mail_receipt       unsafe, one after the other: in doubt after a crash, never repeated
    set_preference                     safe: two bodies leave the same as one
    write_ledger -> notify_finance     a safe one that recognises repetition, then an unsafe one behind it
    look_up_order                      safe: it only reads
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from pydantic import JsonValue

from helix_dbos import Agent, ModelPort, ToolContext, tool
from helix_dbos.cli.demo.shop import Shop

__all__ = ["Desk", "Observe", "refund_desk"]

Observe = Callable[[str, str, int], AbstractAsyncContextManager[None]]
"""Wraps a body: the tool's name, the dispatch id, and which body of the call it is."""

INSTRUCTIONS = """\
You are the refund desk of a shop. To refund an order, ask for all of this in one reply, in this order:
issue_refund, mail_receipt, set_preference (when the customer wishes for something), write_ledger and
notify_finance. When the outcome of a call is unknown, look the order up before you ask for it again,
and then ask only for what is missing. End with one short sentence to the customer.
"""


def unobserved(tool_name: str, dispatch_id: str, attempt: int) -> AbstractAsyncContextManager[None]:
    """Outside the demo nobody watches the bodies."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Desk:
    """What the tools work with; opened once per process."""

    shop: Shop
    observe: Observe = unobserved


# In one reply, calls of one group run one at a time, in order: no receipt before the money.
@tool(concurrency_group="money")
async def issue_refund(ctx: ToolContext[Desk], order_id: str, cents: int) -> dict[str, JsonValue]:
    """Pay money back to the customer of an order.

    Args:
        order_id: The order.
        cents: How much, in euro cents.
    """
    async with ctx.deps.observe("issue_refund", ctx.dispatch_id, ctx.attempt):
        await ctx.deps.shop.pay_back(order_id, cents)
    return {"order_id": order_id, "refunded": cents}


@tool(concurrency_group="money")
async def mail_receipt(ctx: ToolContext[Desk], order_id: str) -> dict[str, JsonValue]:
    """Mail the customer the receipt of a refund.

    Args:
        order_id: The order.
    """
    async with ctx.deps.observe("mail_receipt", ctx.dispatch_id, ctx.attempt):
        await ctx.deps.shop.mail_receipt(order_id)
    return {"order_id": order_id, "mailed": True}


@tool(replay="safe")
async def set_preference(ctx: ToolContext[Desk], name: str, value: str) -> dict[str, JsonValue]:
    """Remember a preference of the customer's.

    Args:
        name: What it is about.
        value: What the customer wants.
    """
    async with ctx.deps.observe("set_preference", ctx.dispatch_id, ctx.attempt):
        await ctx.deps.shop.set_preference(name, value)
    return {name: value}


@tool(replay="safe", sequential=True)
async def write_ledger(ctx: ToolContext[Desk], order_id: str, cents: int) -> dict[str, JsonValue]:
    """Write a refund into the ledger.

    Args:
        order_id: The order.
        cents: How much, in euro cents.
    """
    async with ctx.deps.observe("write_ledger", ctx.dispatch_id, ctx.attempt):
        # The key is the call's, the same for every body of it: that is what makes this tool safe.
        await ctx.deps.shop.write_ledger(ctx.idempotency_key, order_id, cents)
    return {"order_id": order_id, "booked": cents}


@tool(sequential=True)
async def notify_finance(ctx: ToolContext[Desk], order_id: str) -> dict[str, JsonValue]:
    """Tell the finance team that the ledger has a new line.

    Args:
        order_id: The order.
    """
    async with ctx.deps.observe("notify_finance", ctx.dispatch_id, ctx.attempt):
        await ctx.deps.shop.notify_finance(order_id)
    return {"order_id": order_id, "told": "finance"}


@tool(replay="safe")
async def look_up_order(ctx: ToolContext[Desk], order_id: str) -> dict[str, JsonValue]:
    """Look up what has happened to an order: refunds, receipts, ledger lines.

    Args:
        order_id: The order.
    """
    async with ctx.deps.observe("look_up_order", ctx.dispatch_id, ctx.attempt):
        return await ctx.deps.shop.look_up(order_id)


def refund_desk(
    model: str | ModelPort, open_desk: Callable[[], AbstractAsyncContextManager[Desk]]
) -> Agent[Desk]:
    """The agent; its desk is opened once in each process that carries its turns."""
    return Agent(
        name="refund-desk",
        description="Refunds orders and keeps the books straight.",
        model=model,
        instructions=INSTRUCTIONS,
        tools=[issue_refund, mail_receipt, set_preference, write_ledger, notify_finance, look_up_order],
        process_deps=open_desk,
    )
