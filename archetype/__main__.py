"""`python -m archetype`: the command line."""

from archetype.cli.main import main

main()
