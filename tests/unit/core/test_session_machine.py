"""One saved step under random crashes, deploys and answers, driven as the shell drives it.

The shell here is a dictionary for a store and the pure functions for every decision. A body's
start is counted by a witness that the decisions never see.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from helix_dbos.core.calls import Answer, Call, ToolNow
from helix_dbos.core.decisions import AskHook, Decision, Leave, Pair, RunAgain, Start
from helix_dbos.core.history import build_history
from helix_dbos.core.messages import AssistantContent, CallPart
from helix_dbos.core.order import is_behind, startable, with_doubt_ahead
from helix_dbos.core.recovery import decide_recovery
from helix_dbos.core.reply import SaveStep, plan_reply
from helix_dbos.core.settlement import settle_call
from helix_dbos.core.states import CallKind, CallState, Origin, Reason, Replay
from helix_dbos.core.texts import not_executed, raised
from tests.unit.core.core_builders import RETURNED, a_tool

tools_saved = st.builds(
    a_tool,
    replay=st.sampled_from(Replay),
    concurrency_group=st.sampled_from([None, None, "g", "h"]),
    sequential=st.booleans(),
    needs_approval=st.sampled_from([lambda _arguments: False] * 3 + [lambda _arguments: True]),
)

DEPLOYS = {
    "as saved": lambda tool, _policy: tool,
    "policy": lambda tool, policy: replace(tool, replay=policy),
    "removed": lambda _tool, _policy: None,
    "schema": lambda tool, _policy: replace(tool, problem_with=lambda _arguments: "no longer valid"),
    "kind": lambda tool, _policy: replace(tool, kind=CallKind.CLIENT),
    "gated": lambda tool, _policy: replace(tool, needs_approval=lambda _arguments: True),
}


class OneStep(RuleBasedStateMachine):
    """A session with one saved step, and at most one live execution over it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Call] = {}
        self.saved_tools: dict[str, ToolNow] = {}
        self.tools: dict[str, ToolNow] = {}
        self.changed: set[str] = set()
        self.generation = 1
        self.alive = True
        self.running: set[str] = set()
        self.witness: Counter[str] = Counter()
        self.claims: Counter[tuple[str, int]] = Counter()
        self.answers: Counter[str] = Counter()
        self.hooks_asked: set[tuple[str, int]] = set()

    def in_order(self) -> list[Call]:
        return list(self.calls.values())

    def claim(self, call: Call) -> None:
        """Bodies+1 in this generation, then the body starts."""
        assert call.answer is None
        assert call.state is CallState.OPEN
        assert call.tool_name not in self.changed, "started although a deploy took the tool away"
        if call.bodies > 0:
            assert self.tools[call.tool_name].replay is call.replay is not Replay.UNSAFE
        for other in self.in_order():
            if is_behind(call, other):
                assert other.answer is not None, "started while something ahead is unanswered"
                assert not other.answer.doubtful, "started behind doubt"
        bodies = call.bodies + 1
        self.calls[call.dispatch_id] = replace(call, bodies=bodies, generation=self.generation)
        self.claims[call.dispatch_id, self.generation] += 1
        self.witness[call.dispatch_id] += 1
        self.running.add(call.dispatch_id)

    def answer(self, call: Call, answer: Answer) -> None:
        """One answer; in the same transaction doubt spreads to the calls behind.

        Row 1 leaves a waiting call that is behind a doubt; the next answer of the step takes it along.
        """
        settlement = settle_call(self.in_order(), call.dispatch_id, answer, self.generation)
        unanswered = {c.dispatch_id for c in self.in_order() if c.answer is None}
        self.write(call, answer)
        for id_ in self.calls:  # in reply order, so that doubt passes on in one sweep
            other = self.calls[id_]
            if other.answer is None and with_doubt_ahead(other, self.in_order()):
                self.write(other, not_executed(Reason.OUTCOME_UNKNOWN, answer.origin))
        now_answered = {id_: self.calls[id_].answer for id_ in unanswered if self.calls[id_].answer}
        assert dict(settlement.answers) == now_answered

    def write(self, call: Call, answer: Answer) -> None:
        assert self.calls[call.dispatch_id].answer is None, "answered twice"
        self.calls[call.dispatch_id] = replace(call, answer=answer, state=CallState.ANSWERED)
        self.answers[call.dispatch_id] += 1
        self.running.discard(call.dispatch_id)

    def decide(self) -> dict[str, Decision]:
        """What recovery says now about every call that no body of this generation runs."""
        decided = decide_recovery(self.in_order(), self.tools, self.generation)
        undeployed = decide_recovery(self.in_order(), self.saved_tools, self.generation)
        for (call, decision), (_, before) in zip(decided, undeployed, strict=True):
            if isinstance(before, Pair):
                assert isinstance(decision, Pair), "a deploy made recovery less careful"
            if call.bodies == 0:
                assert isinstance(decision, Start | Leave | Pair)
        return {call.dispatch_id: decision for call, decision in decided}

    def commit_decisions(self) -> None:
        """Every Pair in one transaction, before any body starts."""
        for id_, decision in self.decide().items():
            if isinstance(decision, Pair):
                call = self.calls[id_]
                explained = with_doubt_ahead(call, self.in_order()) or call.tool_name in self.changed
                assert call.bodies > 0 or explained, "never started, yet in doubt"
                self.write(call, not_executed(decision.reason, Origin.RECOVERY))
        for call in self.in_order():
            if call.answer is None and call.state is CallState.OPEN:
                assert not with_doubt_ahead(call, self.in_order()), "one transaction decides it all"

    def ready(self) -> list[tuple[Call, Decision]]:
        """What may be claimed now, each looked at once more with the tools of this process."""
        decisions = self.decide()
        return [(call, decisions[call.dispatch_id]) for call in startable(self.in_order(), self.generation)]

    @initialize(tools=st.lists(tools_saved, min_size=1, max_size=5), odd=st.integers(-6, 5))
    def save(self, tools: list[ToolNow], odd: int) -> None:
        tools = [replace(tool, name=f"t{place}") for place, tool in enumerate(tools)]
        self.saved_tools = {tool.name: tool for tool in tools}
        self.tools = dict(self.saved_tools)
        parts = [CallPart(tool_call_id="same", tool_name=tool.name, arguments={}) for tool in tools]
        if odd >= 0:  # one call that the reply itself answers, somewhere in the order
            place = odd % len(parts)
            parts.insert(place, parts[place].model_copy(update={"arguments": "not json"}))
        ids = count()
        plan = plan_reply(
            AssistantContent(parts=tuple(parts)), self.tools, taken_ids=["same"], mint=lambda: f"d{next(ids)}"
        )
        assert isinstance(plan, SaveStep)
        self.content = plan.content
        self.calls = {call.dispatch_id: call for call in plan.calls}
        self.answers.update(call.dispatch_id for call in plan.calls if call.answer)
        for call in plan.calls:
            if call.dispatch_id in plan.starting:
                self.claim(call)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), end=st.sampled_from(["returned", "raised", "timed out"]), go_on=st.booleans())
    def a_body_ends(self, data: st.DataObject, end: str, go_on: bool) -> None:
        call = self.calls[data.draw(st.sampled_from(sorted(self.running)))]
        answers = {
            "returned": RETURNED,
            "raised": raised(Reason.TOOL_FAILED),
            "timed out": raised(Reason.TIMED_OUT)
            if call.replay is not Replay.UNSAFE
            else not_executed(Reason.OUTCOME_UNKNOWN, Origin.BODY),
        }
        self.answer(call, answers[end])
        if go_on:  # the claims of what became startable ride in the same transaction
            self.claim_what_is_ready()

    @precondition(lambda self: self.alive)
    @rule()
    def poll(self) -> None:
        self.commit_decisions()
        self.claim_what_is_ready()

    def claim_what_is_ready(self) -> None:
        for call, decision in self.ready():
            if isinstance(decision, Start | RunAgain):
                assert isinstance(decision, Start) == (call.bodies == 0)
                self.claim(call)

    @precondition(lambda self: self.alive and any(isinstance(d, AskHook) for _, d in self.ready()))
    @rule(verdict=st.sampled_from(["result", "nothing happened", "cannot tell"]))
    def ask_a_hook(self, verdict: str) -> None:
        call = next(call for call, decision in self.ready() if isinstance(decision, AskHook))
        if verdict == "result":
            self.answer(call, replace(RETURNED, origin=Origin.RECOVERY))
        elif verdict == "nothing happened":
            self.hooks_asked.add((call.dispatch_id, self.generation))
            self.claim(call)
        else:
            self.answer(call, not_executed(Reason.OUTCOME_UNKNOWN, Origin.RECOVERY))

    @precondition(lambda self: any(c.state is CallState.WAITING for c in self.in_order()))
    @rule(given=st.booleans())
    def a_person_decides(self, given: bool) -> None:
        call = next(c for c in self.in_order() if c.state is CallState.WAITING)
        if given:
            self.calls[call.dispatch_id] = replace(call, state=CallState.OPEN, approved=True)
        else:
            self.answer(call, not_executed(Reason.APPROVAL_DENIED, Origin.CLIENT))

    @rule()
    def crash(self) -> None:
        self.alive = False
        self.running.clear()

    @precondition(lambda self: self.alive and self.ready())
    @rule()
    def crash_between_claim_and_body(self) -> None:
        started = self.witness.copy()
        self.claim_what_is_ready()
        self.witness = started
        self.crash()

    @precondition(lambda self: not self.alive)
    @rule(data=st.data(), policy=st.sampled_from(Replay), change=st.sampled_from(sorted(DEPLOYS)))
    def deploy(self, data: st.DataObject, policy: Replay, change: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.saved_tools)))
        tool = DEPLOYS[change](self.saved_tools[name], policy)
        self.changed.discard(name)
        gate_is_new = not self.saved_tools[name].needs_approval({})
        if change in ("removed", "schema", "kind") or (change == "gated" and gate_is_new):
            self.changed.add(name)
        self.tools.pop(name, None)
        self.tools |= {name: tool} if tool else {}

    @rule(crash_at_once=st.booleans())
    def attach(self, crash_at_once: bool) -> None:
        """A rescue, or a first recovery: what an older execution runs is no longer listened to."""
        self.crash()
        self.generation += 1
        self.alive = True
        self.commit_decisions()
        if crash_at_once:
            self.crash()

    @invariant()
    def each_call_is_answered_at_most_once(self) -> None:
        for id_, call in self.calls.items():
            assert self.answers[id_] == (call.answer is not None)
            assert (call.state is CallState.ANSWERED) == (call.answer is not None)

    @invariant()
    def bodies_stay_within_the_promise(self) -> None:
        for id_, call in self.calls.items():
            assert self.witness[id_] <= call.bodies <= (1 if call.replay is Replay.UNSAFE else 3)

    @invariant()
    def no_call_is_claimed_twice_in_one_generation(self) -> None:
        assert all(times == 1 for times in self.claims.values())

    @invariant()
    def a_call_behind_an_unanswered_one_never_started(self) -> None:
        for call in self.in_order():
            if any(is_behind(call, other) and other.answer is None for other in self.in_order()):
                assert call.bodies == 0

    @invariant()
    def a_verified_call_runs_again_only_after_its_hook_allowed_it(self) -> None:
        for id_, call in self.calls.items():
            if call.replay is Replay.VERIFIED and call.bodies > 1:
                assert (id_, call.generation) in self.hooks_asked

    def teardown(self) -> None:
        """Once crashes stop and people decide, every call is answered, and the model can be asked."""
        if not self.calls:
            return
        self.attach(crash_at_once=False)
        for _ in range(4 * len(self.calls) + 4):
            self.poll()
            for id_ in sorted(self.running):
                self.answer(self.calls[id_], RETURNED)
            if any(isinstance(decision, AskHook) for _, decision in self.ready()):
                self.ask_a_hook("nothing happened")
            if any(call.state is CallState.WAITING for call in self.in_order()):
                self.a_person_decides(given=True)
        assert all(self.answers[id_] == 1 for id_ in self.calls), "some call stays unanswered"
        self.each_call_is_answered_at_most_once()
        self.bodies_stay_within_the_promise()
        answers = {call.tool_call_id: call.answer for call in self.in_order()}
        _, results = build_history([self.content], answers)
        assert [result.tool_call_id for result in results] == list(answers)


OneStep.TestCase.settings = settings(
    deadline=None,
    max_examples=120,
    stateful_step_count=25,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],  # explaining a failure takes minutes
)
TestOneStep = OneStep.TestCase
