"""`python -m archetype`: the command line."""

from archetype.apps.cli.main import main

main()
