"""``pykvpool sim``: simulate one seed or thousands, and tell what was exercised, or what broke and how to see it."""
