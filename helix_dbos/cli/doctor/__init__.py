"""`helix-dbos doctor`: what is wrong with an app's surroundings, and what mends it. It changes nothing.

command.py    the command, and how a finding looks
examine.py    which looks are taken, in which order
finding.py    what a look gives
server.py, schemas.py, work.py, local.py    the looks
"""
