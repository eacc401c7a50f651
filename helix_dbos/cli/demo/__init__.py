"""`helix-dbos demo`: a worker is killed in the middle of a refund, and nothing is lost or done twice.

desk.py       the agent and its tools: read this first
shop.py       the outside world they act on
script.py     the model that plays the clerk when no real one is wanted
witness.py    who saw what, outside every database
stage.py      what all processes of one performance share
app.py        the TARGET of the demo's workers
place.py      the database it plays in, and its removal
workers.py    the two worker processes
play.py       the performance
facts.py      what the store, the witness and the shop hold afterwards
verdict.py    the promises, checked against the facts
report.py     how it is shown
"""
