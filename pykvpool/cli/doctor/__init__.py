"""`pykvpool doctor`: looks at this host and says what will work, and what to type where something will not.

Read `view` (how the host is seen), `finding` (what is said of it), then any file of checks: each check is a function
from a view and what is wanted to findings, and knows of no other. `checks` lists them; `command` prints.
"""
