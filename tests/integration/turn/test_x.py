import pytest, time, asyncio, threading, sys, traceback
from helix_dbos import *
from helix_dbos.testing import ScriptedModel, say
@pytest.mark.parametrize("n", range(10))
async def test_a(app, settings, n):
    a=Agent(name="a", model=ScriptedModel([say("hi")]))
    h=Helix([a], settings=settings())
    await h.__aenter__()
    o=await (await h.execute(a,"x")).result(5)
    assert o.output=="hi"
    closers=h._process._closers
    import helix_dbos.process as p
    while closers:
        c=closers.pop()
        t=time.time()
        await c()
        print(c.__qualname__, round(time.time()-t,3))
